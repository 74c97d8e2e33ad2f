"""What a trainer says of its positions over its socket, and what is known when it was killed."""

import json
from pathlib import Path

import anyio
from msgspec.structs import replace

from bench.grantor import Grantor
from primusd.datafeed.protocol import FeedAsk, FeedOrders, Held, Mark
from primusd.datafeed.reader.pledges import MARKS_MAX, Pledges
from tests.edges.fed_trainer import fed, plan, units_of

LINES = 5_000


def lines_file(folder: Path) -> Path:
    path = folder / "rows.txt"
    path.write_text("".join(f"{number:08d}\n" for number in range(LINES)))
    return path


def test_of_a_killed_trainer_hardly_more_comes_twice_than_it_had(tmp_path: Path) -> None:
    """C53: a small file is handed to the SDK in one block, and not to the trainer."""
    grantor = Grantor("rows", units_of(lines_file(tmp_path)))
    script = """
        import os, signal
        import primus
        feed = primus.dataset(batch_rows=10)
        for number, batch in enumerate(feed):
            if number == 20:
                os.kill(os.getpid(), signal.SIGKILL)
    """

    async def main() -> list[Held]:
        async with fed(grantor, is_driven=False) as one:
            process = one.start_script(script)
            given_back: list[Held] = []
            while process.poll() is None:
                sent_at = one.server.clock()
                (report,) = one.server.reports()
                given_back += report.returned
                orders = grantor.exchange("r1", report)
                one.server.orders((orders,), sent_at=sent_at, ttl_ms=30_000)
                await anyio.sleep(0.005)
            process.communicate()
            return [*given_back, *one.server.trainer_ended(None, 9)]

    held = anyio.run(main)[0]

    assert held.position <= 200 * 9
    assert 0 < held.delivered - held.position <= (200 + 50) * 9
    assert held.delivered >= 210 * 9


def test_a_mark_that_nobody_heard_goes_with_the_end_of_its_trainer(tmp_path: Path) -> None:
    """C52: it marks, takes more rows, and ends with 0 within one report."""
    grantor = Grantor("rows", units_of(lines_file(tmp_path)))
    script = """
        import primus
        feed = primus.dataset(batch_rows=10)
        next(feed), next(feed)
        feed.mark(2)
        next(feed), next(feed)
        feed.mark(4)
        next(feed), next(feed)
    """
    rows = replace(plan(), promise="exactlyOnce")

    async def main() -> tuple[list[Held], list[tuple[str, Mark]]]:
        async with fed(grantor, rows, is_driven=False) as one:
            process = one.start_script(script)
            given_back: list[Held] = []
            while process.poll() is None:
                sent_at = one.server.clock()
                (report,) = one.server.reports()
                given_back += report.returned
                answers = tuple((ask.id, "") for ask in report.asks)
                orders = replace(grantor.exchange("r1", report), answers=answers)
                one.server.orders((orders,), sent_at=sent_at, ttl_ms=30_000)
                await anyio.sleep(0.005)
            assert process.communicate()[1] == b""
            given_back += one.server.trainer_ended(0, None)
            return given_back, [*one.server.last_marks]

    given_back, marks = anyio.run(main)

    assert [(stream, mark.step) for stream, mark in marks] == [("rows", 2), ("rows", 4)]
    assert [mark.positions[0].position for _, mark in marks] == [180, 360]
    assert given_back[-1].position == 450


def test_marks_and_asks_are_told_until_they_are_heard(tmp_path: Path) -> None:
    """What the daemon says of them comes to the process that spoke, over the same connection."""
    grantor = Grantor("rows", units_of(lines_file(tmp_path)))
    script = """
        import json
        import primus
        feed = primus.dataset(batch_rows=10)
        next(feed)
        print(json.dumps(feed.state_dict(7)))
        try:
            feed.state_dict(8)
        except primus.FeedError as error:
            print(error)
        print(feed.mark(9))
    """
    rows = replace(plan(), promise="exactlyOnce")

    async def main() -> tuple[str, list[object]]:
        async with fed(grantor, rows, is_driven=False) as one:
            process = one.start_script(script)
            heard: list[object] = []
            sealed: tuple[int, str] = (-1, "")
            unsealed: tuple[int, str] = (-1, "")
            answers: tuple[tuple[int, str], ...] = ()
            seq = 0
            while process.poll() is None:
                seq += 1
                sent_at = one.server.clock()
                (report,) = one.server.reports()
                for mark in report.marks:
                    heard.append((mark.step, [p.position for p in mark.positions]))
                    if mark.step == 7:
                        sealed = (7, "step-7-g1")
                    elif mark.step == 8:
                        unsealed = (8, "worker-1 did not mark it")
                answers = tuple((ask.id, "") for ask in report.asks)
                heard += [(ask.kind, ask.name) for ask in report.asks]
                orders = grantor.exchange("r1", report)
                with_words = replace(orders, sealed=sealed, unsealed=unsealed, answers=answers)
                one.server.orders((with_words,), sent_at=sent_at, ttl_ms=30_000)
                await anyio.sleep(0.01)
            out, error = process.communicate()
            assert not error, error.decode()
            return out.decode(), heard

    printed, heard = anyio.run(main)

    first, second, third = printed.splitlines()
    assert json.loads(first)["savepoint"] == "step-7-g1"
    assert json.loads(first)["stream"] == "rows"
    assert "no savepoint of step 8: worker-1 did not mark it" in second
    assert third == "9"
    assert heard[0] == ("restore", "")
    assert (7, [90]) in heard
    assert (8, [90]) in heard


def test_a_step_is_asked_after_when_later_ones_have_their_word_already(tmp_path: Path) -> None:
    """A checkpoint is written beside the steps; orders say the newest word, and the last names."""
    grantor = Grantor("rows", units_of(lines_file(tmp_path)))
    script = """
        import primus
        feed = primus.dataset(batch_rows=10)
        next(feed)
        for step in (1, 2, 3):
            feed.mark(step)
        print(feed.savepoint(3))
        for step in (2, 1, 9):
            try:
                print(feed.savepoint(step))
            except primus.FeedError as error:
                print(error)
    """
    rows = replace(plan(), promise="exactlyOnce")

    async def main() -> str:
        async with fed(grantor, rows, is_driven=False) as one:
            process = one.start_script(script)
            words: dict[str, object] = {}
            while process.poll() is None:
                sent_at = one.server.clock()
                (report,) = one.server.reports()
                if len(report.marks) == 3:
                    words = {
                        "sealed": (3, "three"),
                        "unsealed": (2, "late"),
                        "marked": ((1, "one"), (3, "three")),
                    }
                answers = tuple((ask.id, "") for ask in report.asks)
                orders = grantor.exchange("r1", report)
                told = replace(orders, answers=answers, **words)
                one.server.orders((told,), sent_at=sent_at, ttl_ms=30_000)
                await anyio.sleep(0.01)
            out, error = process.communicate()
            assert not error, error.decode()
            return out.decode()

    printed = anyio.run(main).splitlines()

    assert printed[0] == "three"
    assert "no savepoint of step 2: late" in printed[1]
    assert printed[2] == "one"
    assert "step 9: it was not marked" in printed[3]


def test_a_mark_has_what_was_used_before_it_and_nothing_that_was_used_since(tmp_path: Path) -> None:
    """What is said over one connection may be heard after what was said later over another."""
    grantor = Grantor("rows", units_of(lines_file(tmp_path)))
    script = """
        import primus
        from primus.positions import Positions
        late, say = [], Positions._say
        Positions._say = lambda self, said: (
            late.append((self, said)) if said["op"] == "mark" else say(self, said)
        )
        feed = primus.dataset(batch_rows=10)
        next(feed)
        next(feed)
        feed.mark(1)
        for _ in range(5):
            next(feed)
        feed._source._say_used(feed._source._link)
        say(*late[0])
        print(feed.savepoint(1))
    """
    rows = replace(plan(), promise="exactlyOnce")

    async def main() -> tuple[str, set[int]]:
        async with fed(grantor, rows, is_driven=False) as one:
            process = one.start_script(script)
            heard: set[int] = set()
            sealed: tuple[int, str] = (-1, "")
            while process.poll() is None:
                sent_at = one.server.clock()
                (report,) = one.server.reports()
                heard |= {held.position for mark in report.marks for held in mark.positions}
                if report.marks:
                    sealed = (1, "one")
                answers = tuple((ask.id, "") for ask in report.asks)
                orders = grantor.exchange("r1", report)
                told = replace(orders, answers=answers, sealed=sealed)
                one.server.orders((told,), sent_at=sent_at, ttl_ms=30_000)
                await anyio.sleep(0.01)
            out, error = process.communicate()
            assert not error, error.decode()
            return out.decode(), heard

    printed, heard = anyio.run(main)

    assert printed.split() == ["one"]
    assert heard == {20 * 9}


def test_files_have_positions_too(tmp_path: Path) -> None:
    """A script that is tried without a job keeps and loads its state like one of a job."""
    import primus  # noqa: PLC0415 loads numpy

    path = lines_file(tmp_path)
    feed = primus.dataset(path, batch_rows=7)
    for _ in range(3):
        next(feed)
    state = feed.state_dict()

    again = primus.dataset(path, batch_rows=10)
    again.load_state_dict(state)
    batch = next(again)

    assert [int(line) for line in batch["line"]] == list(range(21, 31))
    assert state["step"] == 3


# Pure.


def orders(**said: object) -> FeedOrders:
    return replace(FeedOrders("rows", (), "serve", 0), **said)


def test_a_mark_is_told_until_its_step_was_sealed_or_failed() -> None:
    pledges = Pledges()
    for step in (1, 2, 3):
        pledges.mark(step, ())

    pledges.obey(orders(sealed=(2, "s")))

    assert [one.step for one in pledges.marks] == [3]
    pledges.mark(2, ())
    assert [one.step for one in pledges.marks] == [3]
    pledges.obey(orders(sealed=(2, "s"), unsealed=(3, "late")))
    assert pledges.marks == ()


def test_marks_and_asks_are_bounded() -> None:
    pledges = Pledges()
    for step in range(3 * MARKS_MAX):
        pledges.mark(step, ())
    taken = [pledges.ask(FeedAsk(number, "savepoint", "s")) for number in range(100)]

    assert len(pledges.marks) == MARKS_MAX
    assert pledges.marks[-1].step == 3 * MARKS_MAX - 1
    assert 0 < sum(taken) < 100


def test_an_ask_is_told_until_it_is_answered_and_its_answer_is_kept() -> None:
    pledges = Pledges()
    pledges.ask(FeedAsk(5, "restore", "s"))
    before = pledges.asks

    pledges.obey(orders(answers=((5, "there is none"), (6, "another's"))))

    assert [one.id for one in before] == [5]
    assert pledges.asks == ()
    assert pledges.answers == {5: "there is none"}
