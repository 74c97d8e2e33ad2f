"""Mappings that are copied in small parts: they hold what a dict holds, and share what stays."""

from hypothesis import given
from hypothesis import strategies as st

from primusd.shelves import SHELF_VALUES_MAX, Shelves, shelved

KEYS = st.integers(0, 400).map(lambda number: f"k{number:04d}")


@given(st.lists(st.tuples(KEYS, st.none() | st.integers()), max_size=300))
def test_holds_what_a_dict_holds_in_the_order_of_the_keys(
    changes: list[tuple[str, int | None]],
) -> None:
    shelves: Shelves[int] = Shelves()
    plain: dict[str, int] = {}
    for key, value in changes:
        shelves = shelves.with_value(key, value)
        if value is None:
            plain.pop(key, None)
        else:
            plain[key] = value

    assert list(shelves.items()) == sorted(plain.items())
    assert shelves == plain == shelved(plain)
    assert len(shelves) == len(plain)
    for key, _ in changes:
        assert (key in shelves) == (key in plain)
        assert shelves.get(key, -1) == plain.get(key, -1)


def test_a_change_leaves_the_mapping_before_as_it_was() -> None:
    before = shelved({"a": 1, "b": 2})

    after = before.with_value("a", 3).with_value("b", None)

    assert before == {"a": 1, "b": 2}
    assert after == {"a": 3}


def test_a_change_copies_one_shelf_of_many() -> None:
    before = shelved({f"k{number:05d}": number for number in range(10_000)})

    after = before.with_value("k05000", -1)

    shared = [one for one in after._shelves if any(one is old for old in before._shelves)]
    assert len(shared) == len(before._shelves) - 1
    assert max(map(len, after._shelves)) <= SHELF_VALUES_MAX


def test_keys_in_between_part_a_full_shelf_in_two() -> None:
    shelves = shelved({f"k{number:05d}": number for number in range(0, 1_000, 10)})

    for number in range(1, 640):
        shelves = shelves.with_value(f"k{number:05d}", number)

    sizes = list(map(len, shelves._shelves))
    assert max(sizes) <= SHELF_VALUES_MAX
    assert min(sizes) >= SHELF_VALUES_MAX // 2 - 1
    assert list(shelves) == sorted(shelves)
