"""`primus.dataset` in a real process, over the real socket."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.grantor import Grantor, beat
from primusd.datafeed.delivery.server import FeedServer, boot_clock
from primusd.job.ids import AttemptId
from tests.edges.fed_trainer import Fed, fed, plan, units_of

CREDITS = 3

COLLECT = """
    import json, sys
    import primus

    out = []
    for batch in primus.dataset(batch_rows=int(sys.argv[1]), layout=sys.argv[2]):
        rows = batch["n"].tolist()
        assert len(rows) == batch.rows
        out.append((batch.epoch, batch.receipt, rows))
    print(json.dumps(out))
"""


def write(folder: Path, files: int = 3, rows: int = 100, group_rows: int = 40) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        first = number * rows
        table = pa.table({"n": list(range(first, first + rows))})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group_rows)
    return folder


def collect(grantor: Grantor, *arguments: str) -> list[tuple[int, int, list[int]]]:
    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(COLLECT, *arguments))

    found: list[tuple[int, int, list[int]]] = json.loads(anyio.run(main))
    return found


@pytest.mark.parametrize("layout", ["numpy", "arrow"])
@pytest.mark.parametrize("granule", [0, 7])
def test_every_row_comes_once_an_epoch_and_batches_are_full(
    tmp_path: Path, layout: str, granule: int
) -> None:
    """M082, C54: 300 rows in batches of 64: the rest of each epoch comes too."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d")), granule=granule, epochs=2)

    batches = collect(grantor, "64", layout)

    for epoch in range(2):
        rows = [n for e, _, numbers in batches if e == epoch for n in numbers]
        assert sorted(rows) == list(range(300))
    assert [len(numbers) for _, _, numbers in batches] == [64, 64, 64, 64, 44] * 2
    assert [receipt for _, receipt, _ in batches][-1] == 600
    assert grantor.is_done


def test_what_one_thread_commits_is_said_while_another_waits_for_rows(tmp_path: Path) -> None:
    """Two commits within a moment, the second one the last: nobody would ever say it."""
    script = """
        import threading, time
        import primus

        feed = primus.dataset(batch_rows=10, manual=True)
        batches = [next(feed), next(feed)]
        reader = threading.Thread(target=lambda: print(next(feed, "ended")))
        reader.start()
        time.sleep(0.3)
        for batch in batches:
            feed.commit(batch.receipt)
        reader.join(20)
    """
    grantor = Grantor("rows", units_of(write(tmp_path / "d", 1, 20)))

    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == "ended"
    assert grantor.is_done


def test_columns_come_as_a_matrix(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3], "b": [4, 5, 6], "name": ["x", "y", "z"]})
    (tmp_path / "d").mkdir()
    pq.write_table(table, tmp_path / "d" / "part.parquet")
    script = """
        import primus
        for batch in primus.dataset(layout="dense", stacks={"x": ["b", "a"]}):
            print(batch["x"].tolist(), batch["name"].tolist())
    """

    async def main() -> str:
        async with fed(Grantor("rows", units_of(tmp_path / "d"))) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == "[[4, 1], [5, 2], [6, 3]] ['x', 'y', 'z']"


def test_rows_of_files_come_in_their_order(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")), granule=50)

    batches = collect(grantor, "1000", "numpy")

    assert [n for _, _, numbers in batches for n in numbers] == list(range(300))


def test_two_trainers_share_the_rows_and_both_end(tmp_path: Path) -> None:
    """M096: the rows that fill no batch are used too, or nobody would ever end."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d", 5)), granule=30)
    rows: list[int] = []

    async def main() -> None:
        async with fed(grantor, name="a") as a, fed(grantor, name="b") as b:
            trainers = [(one, one.start_script(COLLECT, "64", "numpy")) for one in (a, b)]
            for one, process in trainers:
                for _, _, numbers in json.loads(await one.finish(process)):
                    rows.extend(numbers)

    anyio.run(main)

    assert sorted(rows) == list(range(500))
    assert grantor.is_done


SLOW = """
    import sys, time
    import primus

    for batch in primus.dataset(batch_rows=10, manual=len(sys.argv) > 1):
        print(*batch["n"].tolist(), flush=True)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("mode", [(), ("manual",)])
def test_a_killed_trainer_loses_no_row(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """M097, C51, C53: what it had not asked past, or not committed, comes to the next one."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    first: list[int] = []

    async def main() -> list[Any]:
        async with fed(grantor, name="a") as one:
            process = one.start_script(SLOW, *mode)
            assert process.stdout is not None
            for _ in range(6):
                line = await anyio.to_thread.run_sync(process.stdout.readline)
                first.extend(map(int, line.split()))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            one.end(process)
        async with fed(grantor, name="b") as one:
            found: list[Any] = json.loads(
                await one.finish(one.start_script(COLLECT, "50", "numpy"))
            )
            return found

    after = [n for _, _, numbers in anyio.run(main) for n in numbers]

    assert set(first) | set(after) == set(range(300))
    assert set(after) >= set(first[-10:]), "the batch it worked on was not finished"
    if mode:
        assert sorted(after) == list(range(300)), "nothing was committed"
    else:
        assert len(after) < 300, "what it asked past was counted"
    assert grantor.is_done


def test_committed_receipts_count_and_later_batches_do_not(tmp_path: Path) -> None:
    """M097."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import primus

        with primus.dataset(batch_rows=10, manual=True) as feed:
            for number, batch in enumerate(feed):
                if number == 3:
                    feed.commit(batch.receipt)
                if number == 7:
                    break
    """

    async def main() -> None:
        async with fed(grantor) as one:
            await one.finish(one.start_script(script))

    anyio.run(main)

    assert sum(hi - lo for _, _, lo, hi in grantor.done) == 40


def test_leaving_the_loop_gives_back_what_was_not_used(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import primus

        for number, batch in enumerate(primus.dataset(batch_rows=10)):
            if number == 4:
                break
    """

    async def main() -> None:
        async with fed(grantor) as one:
            await one.finish(one.start_script(script))

    anyio.run(main)

    assert sum(hi - lo for _, _, lo, hi in grantor.done) == 40


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("primus.dataset('clicks')", "this role has no stream 'clicks'; its streams: rows, eval"),
        ("primus.dataset()", "this role has no single stream; name one; its streams: rows, eval"),
        (
            "primus.dataset('rows', layout='rows')",
            "layout is 'rows', must be one of numpy, arrow, dense, lines, raw",
        ),
        ("primus.dataset('rows', batch_rows=0)", "batch_rows is 0, must be at least 1"),
        ("primus.dataset('rows', nulls='zero')", "nulls='zero' is not one of error, masked, float"),
    ],
)
def test_a_wrong_call_is_told_in_one_sentence(tmp_path: Path, call: str, sentence: str) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = f"""
        import primus
        try:
            next({call})
        except primus.FeedError as error:
            print(error)
    """

    async def main() -> str:
        async with fed(grantor, plan("rows"), plan("eval@chief")) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == sentence


def test_a_stream_of_its_own_pass_is_found_under_its_plain_name(tmp_path: Path) -> None:
    grantor = Grantor("rows@chief", units_of(write(tmp_path / "d", 1, 5)))
    script = "import primus; print(sum(b.rows for b in primus.dataset('rows')))"

    async def main() -> str:
        async with fed(grantor, plan("rows@chief")) as one:
            assert one.server.environment()["PRIMUS_STREAMS"] == "rows"
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == "5"


def test_a_second_reader_of_a_stream_is_refused_and_a_forked_one_too(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import os, primus
        feed = primus.dataset(batch_rows=10)
        next(feed)
        for other in (lambda: next(primus.dataset()), lambda: next(feed)):
            if os.fork() == 0:
                try:
                    other()
                except primus.FeedError as error:
                    print(str(error)[:61], flush=True)
                os._exit(0)
            os.wait()
        print(next(feed).rows)
    """

    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).splitlines() == [
        "stream rows is read by another process or iterator of this tr",
        "a stream is read by the process that opened it, not by its ch",
        "10",
    ]


def test_what_the_trainer_says_reaches_the_executor(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import primus, numpy
        primus.ready()
        for step in range(8):
            primus.report(step=step, epoch=2, loss=numpy.float32(0.5))
    """

    async def main() -> FeedServer:
        async with fed(grantor) as one:
            await one.finish(one.start_script(script))
            await one.until(lambda: one.server.progress is not None)
            await one.until(lambda: one.server.progress.step == 7)  # type: ignore[union-attr]  # above
            return one.server

    server = anyio.run(main)

    assert server.ready
    assert server.progress is not None
    assert (server.progress.step, server.progress.epoch) == (7, 2)
    assert server.progress.metrics == {"loss": 0.5}


def test_a_stop_ends_the_loop_by_an_error_and_not_by_its_end(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import primus
        try:
            for batch in primus.dataset(batch_rows=10):
                print("batch", flush=True)
                import time; time.sleep(0.01)
            print("finished: would save a final model")
        except primus.StoppingError as stop:
            print(stop.reason, stop.seconds_left)
    """

    async def main() -> str:
        async with fed(grantor) as one:
            process = one.start_script(script)
            assert process.stdout is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            one.server.stopping("preempted", 5_000)
            return await one.finish(process)

    assert anyio.run(main).splitlines()[-1] == "preempted 5.0"


def test_after_a_stop_or_a_fault_the_loop_does_not_look_finished(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")))
    script = """
        import primus
        feed = primus.dataset(batch_rows=10)
        for _ in range(2):
            try:
                for batch in feed:
                    pass
                print("finished")
            except primus.StoppingError:
                print("stopped")
    """

    async def main() -> str:
        async with fed(grantor) as one:
            one.server.stopping("drained", 1_000)
            return await one.finish(one.start_script(script))

    assert anyio.run(main).splitlines() == ["stopped", "stopped"]


def test_a_frozen_trainer_gives_its_rows_back_and_goes_on_when_it_wakes(tmp_path: Path) -> None:
    """C51: it stands still for a minute; what it was not handed goes to others."""
    fat = {"n": list(range(400)), "fat": [bytes(20_000)] * 400}
    pq.write_table(pa.table(fat), tmp_path / "a.parquet", row_group_size=50)
    grantor = Grantor("rows", units_of(tmp_path / "a.parquet"))
    slept = [0.0]

    async def main() -> str:
        async with fed(grantor, name="a", clock=lambda: boot_clock() + slept[0]) as one:
            process = one.start_script(SLOW)
            reader = one.server._desk.readers["rows"]
            await one.until(lambda: len(reader.state.flights) > 0)
            process.send_signal(signal.SIGSTOP)
            await one.until(lambda: len(reader.state.flights) == CREDITS)
            await one.until(lambda: reader.buffered_bytes > 0)
            slept[0] = 61.0
            await one.until(lambda: grantor.reports["a"].want == 0)
            (lease,) = grantor.out.values()
            assert lease.hi < 400
            process.send_signal(signal.SIGCONT)
            return await one.finish(process)

    rows = [int(n) for n in anyio.run(main).split()]

    assert sorted(rows) == list(range(400))


def test_m085_the_faster_small_files_end_the_more_of_them_are_leased_at_once(
    tmp_path: Path,
) -> None:
    """Reports come at most ten times a second, as an executor sends them: no file waits for one."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d", 500, 2, 2)))
    held = []

    async def main() -> str:
        async with fed(grantor, is_driven=False) as one:
            process = one.start_script(COLLECT, "64", "numpy")
            while not grantor.is_done:
                await anyio.sleep(0.1)
                beat(one.server, grantor)
                held.append(len(grantor.out))
            beat(one.server, grantor)
            return await one.finish(process)

    batches = json.loads(anyio.run(main))

    assert sorted(n for _, _, numbers in batches for n in numbers) == list(range(1_000))
    assert max(held) > 32


def test_m101_the_next_files_are_open_while_a_trainer_works_on_its_first_row(
    tmp_path: Path,
) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d", 4, 50)))
    script = """
        import primus
        feed = primus.dataset(batch_rows=1)
        next(feed)
        __import__("signal").pause()
    """

    async def main() -> None:
        async with fed(grantor) as one:
            process = one.start_script(script)
            await one.until(lambda: len(grantor.sizes) >= 2)
            await one.until(lambda: grantor.reports["r1"].buffered_bytes > 0)
            process.kill()
            process.communicate()

    anyio.run(main)

    assert not grantor.done


def test_a_slow_trainer_holds_the_reader_back_by_bytes(tmp_path: Path) -> None:
    """M099."""
    folder = tmp_path / "d"
    folder.mkdir()
    table = pa.table({"n": list(range(400_000))})
    pq.write_table(table, folder / "a.parquet", row_group_size=20_000)
    grantor = Grantor("rows", units_of(folder))
    script = """
        import primus
        feed = primus.dataset(batch_rows=100)
        next(feed)
        print("one", flush=True)
        __import__("signal").pause()
    """

    async def main() -> None:
        async with fed(grantor, plan("rows", memory_bytes=2_000_000)) as one:
            process = one.start_script(script)
            assert process.stdout is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            await one.until(lambda: grantor.reports["r1"].buffered_bytes > 0)
            for _ in range(20):
                await anyio.sleep(0.005)
                assert grantor.reports["r1"].buffered_bytes <= 1_000_000
            process.kill()
            process.communicate()

    anyio.run(main)


def test_delivery_stops_at_the_window_while_nobody_acknowledges(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d")), window_rows=50)
    script = """
        import primus
        for batch in primus.dataset(batch_rows=10):
            print(batch.rows, flush=True)
    """

    async def main() -> int:
        async with fed(grantor, is_driven=False) as one:
            process = one.start_script(script)
            await one.until(lambda: one.server.reports()[0].want > 0)
            beat(one.server, grantor)
            assert process.stdout is not None
            count = 0
            with anyio.move_on_after(0.3):
                while await anyio.to_thread.run_sync(
                    process.stdout.readline, abandon_on_cancel=True
                ):
                    count += 1
            process.kill()
            process.communicate()
            return count

    # All three frames that it has room for may be on their way when the window is full.
    assert anyio.run(main) * 10 <= 50 + 3 * 100


def test_a_file_that_changed_is_told_as_bad_and_the_others_come(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", 2, 10)
    grantor = Grantor("rows", units_of(folder))
    os.utime(folder / "part-0.parquet", ns=(1, 1))

    batches = collect(grantor, "64", "numpy")

    assert [n for _, _, numbers in batches for n in numbers] == list(range(10, 20))
    assert [(unit, lo, kind) for unit, lo, _, kind in grantor.bad] == [(0, 0, "changed")]


def test_a_file_with_another_type_is_told_as_bad(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", 1, 10)
    pq.write_table(pa.table({"n": ["x"]}), folder / "part-1.parquet")
    grantor = Grantor("rows", units_of(folder))

    collect(grantor, "64", "numpy")

    assert [(unit, kind) for unit, _, _, kind in grantor.bad] == [(1, "data")]


def test_a_stream_is_closed_and_opened_again_and_its_end_is_heard_of_in_between(
    tmp_path: Path,
) -> None:
    """Each time at once, though the executor's thread reads, and with other columns."""
    grantor = Grantor("rows", units_of(write(tmp_path / "d")), granule=20)
    script = """
        import os
        import primus
        from primus.remote import EndWatch

        rows = []
        for _ in range(20):
            with primus.dataset("rows", batch_rows=10, columns=["n"], manual=True) as feed:
                batch = next(feed)
                feed.commit(batch.receipt)
                rows += batch["n"].tolist()
        watch = EndWatch(os.environ["PRIMUS_SOCKET"], "rows")
        rows += [n for batch in primus.dataset("rows") for n in batch["n"].tolist()]
        while not watch.has_ended():
            pass
        print(*rows)
    """

    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(script))

    assert sorted(map(int, anyio.run(main).split())) == list(range(300))
    assert grantor.is_done


def test_garbage_on_the_socket_ends_that_connection_only(tmp_path: Path) -> None:
    grantor = Grantor("rows", units_of(write(tmp_path / "d", 1, 10)))

    def spoil(path: Path, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5)
            link.connect(str(path))
            link.sendall(data)
            try:
                return link.recv(100)
            except ConnectionResetError:
                return b""

    async def main() -> str:
        async with fed(grantor) as one:
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x03\0\0\0J{x"):
                assert await anyio.to_thread.run_sync(spoil, one.server.socket_path, data) == b""
            return await one.finish(one.start_script(COLLECT, "64", "numpy"))

    assert len(json.loads(anyio.run(main))[0][2]) == 10


def test_a_state_directory_with_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    script = "import primus; primus.ready(); print('said')"

    async def main() -> None:
        server = FeedServer((), directory=folder, attempt=AttemptId("j", "w", 0, 1))
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            one = Fed(server, Grantor("rows", []), "r1")
            await one.finish(one.start_script(script))
            await one.until(lambda: server.ready)
            assert oct((folder / "trainer.sock").stat().st_mode)[-3:] == "600"
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_lines_of_text_come_as_bytes(tmp_path: Path) -> None:
    """C75."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n\xff\xfe\n\nlast")
    grantor = Grantor("rows", units_of(path), granule=3)
    script = """
        import primus
        print([line for b in primus.dataset(batch_rows=2) for line in b["line"].tolist()])
    """

    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == str([b"one", b"\xff\xfe", b"", b"last"])
    assert grantor.is_done
