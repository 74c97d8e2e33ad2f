"""FIFOs: a program with several streams opens each by its name, in its own time."""

from pathlib import Path

import anyio

from bench.grantor import Grantor
from tests.edges.fed_trainer import fed, plan, units_of
from tests.edges.test_stdin_feed import write_lines

FEED = 'cd "${PRIMUS_FEED#fifo:}"'


def feed(grantor: Grantor, script: str, framing: str = "lines") -> str:
    async def main() -> str:
        async with fed(grantor, plan(delivery="fifo", framing=framing)) as one:
            return await one.finish(one.start(["sh", "-c", f"{FEED}; {script}"]))

    return anyio.run(main)


def test_a_program_gets_all_lines_of_two_epochs_and_then_the_end(tmp_path: Path) -> None:
    """M096."""
    data = write_lines(tmp_path / "a.txt", 60_000)
    grantor = Grantor("rows", units_of(tmp_path), granule=100_000, epochs=2)

    out = feed(grantor, "cat rows")

    assert out == data.decode() * 2
    assert grantor.is_done


def test_who_opens_late_misses_neither_a_line_nor_the_end(tmp_path: Path) -> None:
    """All of it was written by then, and nobody would write to it again."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    grantor = Grantor("rows", units_of(tmp_path))

    assert feed(grantor, "sleep 0.5; cat rows") == "one\ntwo\n"
    assert grantor.is_done


def test_the_end_of_a_stream_without_a_row_comes_to_who_opens_it_late(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    grantor = Grantor("rows", units_of(tmp_path), epochs=0)

    assert feed(grantor, "sleep 0.3; cat rows; echo ended") == "ended\n"


def test_c53_what_a_killed_program_did_not_read_comes_to_the_next_one(tmp_path: Path) -> None:
    """M096."""
    data = write_lines(tmp_path / "a.txt", 60_000)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> str:
        async with fed(grantor, plan(delivery="fifo", framing="lines"), name="a") as first:
            process = first.start(["sh", "-c", f"{FEED}; head -c 300000 rows >&2; kill -9 $$"])
            await anyio.to_thread.run_sync(process.communicate)
            first.end(process)
        async with fed(grantor, plan(delivery="fifo", framing="lines"), name="b") as second:
            return await second.finish(second.start(["sh", "-c", f"{FEED}; cat rows"]))

    rest = anyio.run(main)

    assert data.decode().endswith(rest), "from a line's start on"
    assert len(rest) >= len(data) - 300_000, "no line is missing"
    assert grantor.is_done


def test_two_streams_come_side_by_side(tmp_path: Path) -> None:
    """One is read to its end before the other is opened."""
    write_lines(tmp_path / "a.txt", 10)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> str:
        async with fed(
            grantor,
            plan("rows", delivery="fifo", framing="lines"),
            plan("eval@chief", delivery="fifo", framing="lines"),
        ) as one:
            script = f"{FEED}; ls; wc -l < rows"
            return await one.finish(one.start(["sh", "-c", script]))

    assert anyio.run(main).split() == ["eval", "rows", "10"]
