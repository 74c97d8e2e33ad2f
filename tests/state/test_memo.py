"""What is remembered by identity stays within its bound, also when several threads ask."""

from concurrent.futures import ThreadPoolExecutor

from primusd.admission.memo import Memo


def test_the_oldest_goes_first_when_it_is_too_much() -> None:
    memo: Memo[list[int], int] = Memo(3, weigh=len)
    first, second, third = [1, 2], [3], [4, 5]

    for one in (first, second, third):
        memo.put(one, sum(one))

    assert [memo.get(one) for one in (first, second, third)] == [None, 3, 9]


def test_a_result_is_of_that_very_object() -> None:
    memo: Memo[list[int], int] = Memo(3)
    known = [1]
    memo.put(known, 7)

    assert memo.get([1]) is None
    assert memo.of(known, sum) == 7


def test_threads_that_forget_the_same_do_no_harm() -> None:
    memo: Memo[list[int], int] = Memo(4)
    values = [[number] for number in range(64)]

    def ask(_: int) -> bool:
        return all(memo.of(one, sum) == one[0] for _ in range(20) for one in values)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(16)))
    memo.put([1], 1)
    assert memo.get(values[0]) is None
