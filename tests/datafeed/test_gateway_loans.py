"""What a gateway lends: each batch used once, in the end, whatever its clients do."""

import random
from typing import NamedTuple

import pytest

from primusd.gateway.loans import Loans


class Batch(NamedTuple):
    receipt: int


def test_receipts_go_on_only_over_batches_that_are_all_used() -> None:
    loans = Loans(10)
    first, second, third = (loans.lend(Batch(n), 0) for n in (10, 20, 30))

    assert loans.use(second.name) == (True, 0)
    assert loans.use(first.name) == (True, 20)
    assert loans.use(third.name) == (True, 30)
    assert len(loans) == 0


def test_c49_a_batch_whose_time_is_over_is_lent_again_and_the_late_word_counts_for_nothing() -> (
    None
):
    loans = Loans(10)
    late = loans.lend(Batch(10), 0).name

    assert loans.lend_again(10) is None
    again = loans.lend_again(10.1)

    assert again is not None
    assert loans.use(late) == (False, 0)
    assert not loans.renew(late, 11)
    assert loans.use(again.name) == (True, 10)
    assert loans.use(again.name) == (False, 0), "used once"
    assert loans.returned_count == 1


def test_who_renews_keeps_it_and_who_gives_back_loses_it_at_once() -> None:
    loans = Loans(10)
    name = loans.lend(Batch(10), 0).name

    assert loans.renew(name, 9)
    assert loans.over_at() == 19
    assert loans.lend_again(18) is None
    assert loans.give_back(name)
    assert not loans.give_back(name)
    assert loans.over_at() == -1
    assert loans.lend_again(18) is not None


def test_what_is_being_sent_stays_with_its_client_however_long_it_takes() -> None:
    loans = Loans(10)
    name = loans.lend(Batch(10), 0).name

    loans.hold(name)

    assert loans.lend_again(10**6) is None
    assert loans.over_at() == float("inf")
    assert loans.use(name) == (True, 10)


def test_what_is_given_back_to_the_stream_is_nobodys_and_a_late_word_counts_for_nothing() -> None:
    loans = Loans(10)
    first, second = (loans.lend(Batch(n), 0).name for n in (10, 20))
    gaps = [loans.has_gap]
    loans.use(second)
    gaps.append(loans.has_gap)

    loans.drop_all()

    assert gaps == [False, True]
    assert len(loans) == 0
    assert loans.returned_count == 1
    assert loans.use(first) == (False, 0)
    assert loans.lend(Batch(10), 11).name not in (first, second)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_clients_do_every_batch_is_used_once_and_receipts_never_skip_one(
    seed: int,
) -> None:
    chance, loans = random.Random(seed), Loans(5)
    held: list[tuple[str, int]] = []
    used: list[int] = []
    now, fresh, receipt = 0.0, 0, 0
    while len(used) < 30:
        now += chance.random() * 3
        deed = chance.choice(("take", "take", "use", "give", "vanish"))
        if deed == "take":
            loan = loans.lend_again(now)
            if loan is None and fresh < 30:
                fresh += 1
                loan = loans.lend(Batch(fresh), now)
            if loan is not None:
                held.append((loan.name, loan.batch.receipt))
        elif held:
            name, number = held.pop(chance.randrange(len(held)))
            if deed == "use":
                had, up_to = loans.use(name)
                used += [number] if had else []
                receipt = up_to or receipt
                assert set(range(1, receipt + 1)) <= set(used)
            elif deed == "give":
                loans.give_back(name)

    assert sorted(used) == list(range(1, 31))
    assert receipt == 30
    assert len(loans) == 0
