"""Standard input: any program is a trainer, and what it has taken is seen, not told."""

import hashlib
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.grantor import Grantor, Open
from primusd.datafeed.delivery import pipe
from primusd.datafeed.delivery.pipe import CHILD_BUFFER_BYTES
from primusd.datafeed.delivery.pipe_reader import activity, is_waiting_for_input
from primusd.datafeed.protocol import Held
from tests.edges.fed_trainer import fed, plan, stdin_plan, units_of, until

READ_ONE_LINE_AND_STOP = ["sh", "-c", "read line; echo $line; kill -STOP $$"]


def write_lines(path: Path, count: int, width: int = 90) -> bytes:
    data = b"".join(b"%09d %s\n" % (n, b"x" * (n % width)) for n in range(count))
    path.write_bytes(data)
    return data


def feed(grantor: Grantor, command: list[str], framing: str = "lines") -> str:
    async def main() -> str:
        async with fed(grantor, stdin_plan(framing)) as one:
            return await one.finish(one.start(command))

    return anyio.run(main)


@pytest.mark.parametrize("granule", [0, 1_000])
def test_a_program_gets_all_files_in_order_and_then_the_end(tmp_path: Path, granule: int) -> None:
    """M090, M095."""
    a = write_lines(tmp_path / "a.txt", 400)
    b = b"windows\r\n\xff\x00bad bytes\nno end"
    (tmp_path / "b.txt").write_bytes(b)
    grantor = Grantor("rows", units_of(tmp_path), granule=granule, epochs=2)

    out = feed(grantor, ["cat"])

    assert out == (a + b + b"\n").decode("utf-8", "backslashreplace") * 2
    assert grantor.is_done


def test_raw_bytes_are_passed_on_as_they_are(tmp_path: Path) -> None:
    """M091."""
    (tmp_path / "a.txt").write_bytes(b"one\ntwo")
    grantor = Grantor("rows", units_of(tmp_path))

    assert feed(grantor, ["cat"], "raw") == "one\ntwo"
    assert grantor.is_done


def test_lines_are_counted_by_wc(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 60_000)
    grantor = Grantor("rows", units_of(tmp_path), granule=1 << 20)

    assert feed(grantor, ["wc", "-l"]).strip() == "60000"
    assert grantor.is_done


def test_random_bytes_arrive_unchanged(tmp_path: Path) -> None:
    """M091, C75."""
    data = random.Random(5).randbytes(300_000)
    (tmp_path / "a.txt").write_bytes(data)
    grantor = Grantor("rows", units_of(tmp_path), granule=7_000)

    out = feed(grantor, ["sha256sum"], "raw")

    told = subprocess.run(["sha256sum"], input=data, capture_output=True, check=True).stdout
    assert out == told.decode()


def test_a_line_longer_than_the_pipe_arrives(tmp_path: Path) -> None:
    data = b"short\n" + b"x" * (3 << 20) + b"\nlast\n"
    (tmp_path / "a.txt").write_bytes(data)
    grantor = Grantor("rows", units_of(tmp_path), granule=1 << 20)

    assert feed(grantor, ["wc", "-c"]).strip() == str(len(data))
    assert grantor.is_done


def test_m098_a_record_of_64_mebibytes_arrives_between_its_neighbours(tmp_path: Path) -> None:
    """However little memory the stream has: a line that needs no decoding is never held whole."""
    data = b"short\n" + b"x" * (64 << 20) + b"\nlast\n"
    (tmp_path / "a.txt").write_bytes(data)
    grantor = Grantor("rows", units_of(tmp_path))
    rows = plan(delivery="stdin", framing="lines", memory_bytes=32 << 20)

    async def main() -> str:
        async with fed(grantor, rows) as one:
            return await one.finish(one.start(["sha256sum"]))

    assert anyio.run(main).split()[0] == hashlib.sha256(data).hexdigest()
    assert not grantor.bad


def test_rows_of_parquet_come_as_json_lines(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3], "s": ["a", None, "é"]}), tmp_path / "a.parquet")
    grantor = Grantor("rows", units_of(tmp_path))

    out = feed(grantor, ["cat"])

    rows = [json.loads(line) for line in out.splitlines()]
    assert rows == [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": "é"}]
    assert grantor.is_done


def test_a_program_that_reads_five_lines_leaves_the_rest_to_others(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.txt", 50_000)
    grantor = Grantor("rows", units_of(tmp_path))

    out = feed(grantor, ["head", "-n", "5"])

    assert out.encode() == b"".join(data.splitlines(keepends=True)[:5])
    assert not grantor.is_done
    assert not grantor.out
    assert feed(grantor, ["wc", "-l"]).strip() == "50000", "its buffer may have held all it read"


def test_the_pipe_stays_open_while_others_still_hold_rows(tmp_path: Path) -> None:
    """End of file means that the stream is finished, and nothing else."""
    write_lines(tmp_path / "a.txt", 10)
    grantor = Grantor("rows", units_of(tmp_path))
    grantor.out[999] = Open("other", 0, 0, 0, 10, 0)

    async def main() -> str:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start(["wc", "-l"])
            await one.until(lambda: bool(grantor.done))
            await anyio.sleep(0.1)
            assert process.poll() is None
            del grantor.out[999]
            return await one.finish(process)

    assert anyio.run(main).strip() == "10"


def test_a_stop_does_not_close_the_pipe(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 10)
    grantor = Grantor("rows", units_of(tmp_path))
    grantor.out[999] = Open("other", 0, 0, 0, 10, 0)

    async def main() -> int:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start(["wc", "-l"])
            await one.until(lambda: bool(grantor.done))
            one.server.stopping("preempted", 5_000)
            await anyio.sleep(0.1)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            out, _ = await anyio.to_thread.run_sync(process.communicate)
            assert out == b"", "it would have printed a count at the end of file"
            one.end(process)
            return process.returncode

    assert anyio.run(main) == -signal.SIGTERM


WORK = """
    import os, sys
    for number, line in enumerate(sys.stdin.buffer):
        print(line.decode()[:9], flush=True)
        if number == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("dies_at", [0, 1, 777, 30_000, 59_999])
def test_a_killed_program_loses_no_row_and_the_next_one_begins_at_a_row(
    tmp_path: Path, dies_at: int
) -> None:
    """C53: also of what lay in its own buffer; a row it got half of comes whole again."""
    write_lines(tmp_path / "a.txt", 60_000)
    grantor = Grantor("rows", units_of(tmp_path), granule=1 << 20)

    async def main() -> tuple[list[str], list[str]]:
        async with fed(grantor, stdin_plan(), name="a") as one:
            process = one.start_script(WORK, str(dies_at))
            out, _ = await anyio.to_thread.run_sync(process.communicate)
            one.end(process)
            first = out.decode().splitlines()
        async with fed(grantor, stdin_plan(), name="b") as one:
            second = (await one.finish(one.start(["cut", "-c", "1-9"]))).splitlines()
        return first, second

    first, second = anyio.run(main)

    rows = [f"{n:09d}" for n in range(60_000)]
    assert first == rows[: dies_at + 1]
    assert set(second) <= set(rows), "a tail of a row"
    assert set(first) | set(second) == set(rows)
    repeated = len(set(first) & set(second))
    assert repeated * 10 <= CHILD_BUFFER_BYTES + (2 << 20)
    assert grantor.is_done


def test_a_program_that_died_when_it_had_used_all_repeats_nothing(tmp_path: Path) -> None:
    """It waited in a read of the empty pipe, so its buffer was used up."""
    write_lines(tmp_path / "a.txt", 100)
    grantor = Grantor("rows", units_of(tmp_path))
    grantor.out[999] = Open("other", 0, 0, 0, 10, 0)

    async def main() -> None:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start(["cat"])
            await one.until(lambda: bool(grantor.done))
            process.kill()
            process.communicate()
            one.end(process)

    anyio.run(main)

    assert grantor.done == [(0, 0, 0, (tmp_path / "a.txt").stat().st_size)]


def test_a_busy_program_is_not_taken_to_have_used_what_it_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 100)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> int:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start(READ_ONE_LINE_AND_STOP)
            assert process.stdout is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            await anyio.sleep(0.2)
            (lease,) = grantor.out.values()
            process.kill()
            process.communicate()
            one.end(process)
            return lease.position

    assert anyio.run(main) == 0


def test_what_never_left_the_pipe_did_not_come_twice(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 60_000)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> Held:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start(READ_ONE_LINE_AND_STOP)
            assert process.stdout is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            process.kill()
            process.communicate()
            (held,) = one.server.trainer_ended(None, 9)
            return held

    held = anyio.run(main)

    assert held.position == 0
    assert held.delivered == 11, "a shell reads byte by byte: one row"


SLOW = """
    import sys, time
    for line in sys.stdin:
        print(line[:9], flush=True)
        time.sleep(0.05)
"""


def test_a_slow_program_that_is_killed_loses_no_row_of_its_buffer(tmp_path: Path) -> None:
    """It read all 40 rows at once and sleeps in each: neither sleep nor work is a wish for more."""
    write_lines(tmp_path / "a.txt", 40)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> tuple[list[str], list[str]]:
        async with fed(grantor, stdin_plan(), name="a") as one:
            process = one.start_script(SLOW)
            assert process.stdout is not None
            first = [
                (await anyio.to_thread.run_sync(process.stdout.readline)).decode().strip()
                for _ in range(8)
            ]
            process.kill()
            process.communicate()
            one.end(process)
        async with fed(grantor, stdin_plan(), name="b") as one:
            return first, (await one.finish(one.start(["cut", "-c", "1-9"]))).splitlines()

    first, second = anyio.run(main)

    assert len(first) == 8
    assert set(first) | set(second) == {f"{n:09d}" for n in range(40)}


POLLS = """
    import os, selectors
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    os.set_blocking(0, False)
    total = 0
    while selector.select():
        data = os.read(0, 100)
        if not data:
            break
        total += len(data)
    print(total)
"""


def test_a_program_that_polls_gets_its_end_once_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "QUIET_S", 0.2)
    monkeypatch.setattr(pipe, "QUIET_LOOK_S", 0.05)
    data = write_lines(tmp_path / "a.txt", 40)
    grantor = Grantor("rows", units_of(tmp_path))

    async def main() -> str:
        async with fed(grantor, stdin_plan()) as one:
            return await one.finish(one.start_script(POLLS))

    assert anyio.run(main).strip() == str(len(data))
    assert grantor.is_done


def test_activity_stands_still_while_a_program_waits_and_grows_while_it_works() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.read(2)
        anyio.run(until, lambda: activity(process.pid) == activity(process.pid))
        before = activity(process.pid)

        process.stdin.write(b"y\n")
        process.stdin.flush()
        process.stdout.read(2)

        assert activity(process.pid) > before > 0
        process.stdin.close()


def test_waiting_in_a_read_of_the_pipe_is_seen_also_below_a_shell(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    inode = os.fstat(read_end).st_ino
    other_end, _ = os.pipe()
    with subprocess.Popen(["sh", "-c", "cat; exit 0"], stdin=read_end) as process:
        anyio.run(until, lambda: is_waiting_for_input(process.pid, f"pipe:[{inode}]"))

        assert not is_waiting_for_input(process.pid, f"pipe:[{os.fstat(other_end).st_ino}]")
        os.close(write_end)
        process.wait(10)
        assert not is_waiting_for_input(process.pid, f"pipe:[{inode}]")
    os.close(read_end)


def test_a_program_that_closes_its_input_leaves_the_rest_and_lives_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 100_000)
    grantor = Grantor("rows", units_of(tmp_path))
    script = """
        import os, signal
        os.close(0)
        print("closed", flush=True)
        signal.pause()
    """

    async def main() -> None:
        async with fed(grantor, stdin_plan()) as one:
            process = one.start_script(script)
            await one.until(lambda: len(grantor.reports) > 0 and not grantor.out)
            await one.until(lambda: grantor.reports["r1"].want == 0)
            assert process.poll() is None
            process.kill()
            process.communicate()
            one.end(process)

    anyio.run(main)

    assert feed(grantor, ["wc", "-l"]).strip() == "100000"


def test_a_file_that_is_gone_is_told_and_the_others_come(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", 10)
    write_lines(tmp_path / "b.txt", 20)
    grantor = Grantor("rows", units_of(tmp_path))
    (tmp_path / "a.txt").unlink()

    assert feed(grantor, ["wc", "-l"]).strip() == "20"
    assert [kind for *_, kind in grantor.bad] == ["vanished"]
