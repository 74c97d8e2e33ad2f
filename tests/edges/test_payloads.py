"""Memory of payloads is used again once nobody looks at it, and never before."""

import numpy as np

from primus.payloads import KEPT_MAX, Payloads


def address(view: memoryview) -> int:
    """Return where a piece begins."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_piece_is_used_again_when_no_view_of_it_is_left() -> None:
    payloads = Payloads()
    piece = payloads.allocate(4_096)
    before = address(piece)
    column = np.frombuffer(piece, np.int32, 100, 64)[10:20]
    del piece
    column[:] = 7

    other = payloads.allocate(4_096)
    other[:] = bytes(4_096)
    assert column.tolist() == [7] * 10
    del column

    assert address(payloads.allocate(100)) == before


def test_all_begin_where_tensors_want_it() -> None:
    payloads = Payloads()

    held = [payloads.allocate(count) for count in (1, 65, 4_096, 100_001)]

    assert [len(piece) for piece in held] == [1, 65, 4_096, 100_001]
    assert all(address(piece) % 64 == 0 for piece in held)


def test_who_holds_all_batches_gets_memory_that_is_not_kept() -> None:
    payloads = Payloads()
    held = [payloads.allocate(1_000) for _ in range(3 * KEPT_MAX)]
    for number, piece in enumerate(held):
        piece[:] = bytes([number]) * 1_000

    assert [piece[999] for piece in held] == list(range(3 * KEPT_MAX))
    assert len({address(piece) for piece in held}) == 3 * KEPT_MAX


def test_a_larger_piece_takes_the_place_of_one_that_is_free() -> None:
    payloads = Payloads()
    payloads.allocate(1_000)
    large = address(payloads.allocate(1 << 20))

    assert address(payloads.allocate(1_000)) == large
