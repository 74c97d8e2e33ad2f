"""Parts of the job machine: chunks, orders, peers, demand, timeline, invariants, stored forms."""

import msgspec
import pytest
from msgspec.structs import replace

from primusd.admission.events import DemandRaised
from primusd.admission.model import Admission
from primusd.executor.protocol import Hold, Leave, Start, Stop
from primusd.job import chunks, invariants
from primusd.job import events as ev
from primusd.job.commands import LaunchAttempt, PublishPeers, ReleaseAttempt, StopAttempt
from primusd.job.counts import rules_of
from primusd.job.duties import plan_of
from primusd.job.ids import AttemptId, Span
from primusd.job.model import Job, Replica
from primusd.job.outcome import Evidence, decide
from primusd.job.phases import AttemptPhase, ReplicaPhase
from primusd.job.run_order import peers_of, run_order
from primusd.job.spec import Reading, Source, StreamSpec
from primusd.job.timeline import TOLD_REASONS
from primusd.job.wording import duration_words, span_words, unit_words
from primusd.records import Record, decode_entry, encode_entry
from tests.state.job_driver import UID, Cluster, ended, role, span, spec


def records(cluster: Cluster, kind: type) -> list[Record]:
    return [
        one for entry in cluster.entries for one in entry.records if isinstance(one.event, kind)
    ]


# Chunks: what one event costs does not depend on how many replicas there are.


def test_one_event_copies_one_chunk_and_begins_are_one_record() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 1_000)))
    before = cluster.role().chunks

    cluster.launch("worker-250")

    after = cluster.role().chunks
    assert [old is new for old, new in zip(before, after, strict=True)].count(False) == 1
    begun = records(cluster, ev.AttemptBegun)
    assert [one.event for one in begun] == [ev.AttemptBegun(span("worker", 0, 999))]


def test_completions_of_a_large_role_are_told_to_admission_in_tenths() -> None:
    cluster = Cluster(checked_every=100)
    cluster.run(spec(role("worker", 300)))
    told = len(records(cluster, DemandRaised))

    for index in range(300):
        cluster.exit(f"worker-{index}")

    assert cluster.phase == "Succeeded"
    assert len(records(cluster, DemandRaised)) - told <= 45
    assert cluster.world.admission.demands == {}


def test_a_small_job_gives_each_slot_back_at_once() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 3)))

    cluster.exit("worker-1")

    held = cluster.world.admission.demands[UID].held
    assert sorted(held) == [("worker", 0), ("worker", 2)]


def test_masks_become_spans_over_the_borders_of_chunks() -> None:
    full = (1 << 100) - 1
    masks = [full, full >> 1, 0, 0b1011]

    found = chunks.mask_spans("w", masks)

    assert found == (Span("w", 0, 198), Span("w", 300, 301), Span("w", 303, 303))
    assert chunks.span_length(found) == 202


# Orders and peers.


def test_orders_follow_the_phase_and_the_grace_that_is_left() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 1, unit="replica")))
    me = cluster.id("worker-0")
    assert run_order(cluster.job, me, 0) == Hold()
    cluster.launch()
    cluster.register()
    assert run_order(cluster.job, me, 0) == Hold()
    cluster.hold()

    started = run_order(cluster.job, me, 0)
    assert started == Start(1, cluster.job.peers.digest, cluster.job.peers.inline)
    cluster.start()
    cluster.say(ev.CancelRequested("enough"))
    stop = run_order(cluster.job, me, cluster.now_ms + 10_000)
    assert stop == Stop("cancelled", "enough", 20_000)
    cluster.say(ev.TrainerExited(me, ended(None, 15, stop_seen="cancelled")))
    assert run_order(cluster.job, me, 0) == Leave()
    assert run_order(cluster.job, AttemptId(UID, "nobody", 0, 1), 0) == Leave()


def test_an_attempt_that_never_was_told_to_start_gets_no_grace() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.say(ev.CancelRequested())

    (command,) = plan_of(cluster.job)

    assert isinstance(command, StopAttempt)
    assert command.not_before_ms == cluster.now_ms
    assert command.deadline_ms == cluster.now_ms + 40_000


def test_the_plan_follows_the_phases() -> None:
    cluster = Cluster()
    cluster.submit()
    me = cluster.id("worker-0")
    assert plan_of(cluster.job) == (LaunchAttempt(me, "n1"),)
    cluster.bring_up()
    assert plan_of(cluster.job) == ()
    cluster.say(ev.TrainerExited(me, ended(1)))

    (release,) = plan_of(cluster.job)

    assert release == ReleaseAttempt(me, "n1", cluster.now_ms + 10_000, cluster.now_ms + 60_000)


def test_the_peers_document_changes_only_when_a_gate_opens() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    first = cluster.job.peers
    assert (first.generation, first.revision) == (1, 1)
    assert first.inline == peers_of(cluster.job)
    assert msgspec.json.decode(first.inline)["roles"]["worker"][1]["index"] == 1

    cluster.exit("worker-0", code=1)
    cluster.wait(15_000)
    cluster.launch()
    cluster.register()
    assert cluster.job.peers is first or cluster.job.peers == first
    assert peers_of(cluster.job) == first.inline, "peers keep the address they know"
    cluster.hold()

    assert cluster.job.peers.revision == 2


def test_the_document_of_many_is_made_when_it_is_fetched() -> None:
    """Made at each opening it takes a look at every replica for each of them."""
    cluster = Cluster(checked_every=10_000)
    cluster.submit(spec(role("worker", 1_200), policy="dynamic"))
    names = [f"worker-{index}" for index in range(3)]
    digests = []

    for name in names:
        cluster.launch(name)
        cluster.register(name)
        cluster.hold(name)
        digests.append(cluster.job.peers.digest)

    assert len(set(digests)) == 3
    assert cluster.job.peers.inline == b""
    assert peers_of(cluster.job).count(b'"index"') == 3


def test_a_large_peers_document_is_published_and_not_pushed() -> None:
    cluster = Cluster(checked_every=200)
    cluster.submit(spec(role("worker", 400)))
    cluster.launch()
    cluster.register()
    cluster.hold()

    assert cluster.job.peers.inline == b""
    assert cluster.job.peers.digest.startswith("sha256:")
    assert PublishPeers(UID, 1, 1) in plan_of(cluster.job)


def test_ports_are_named_in_the_order_of_the_role() -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 2, ports=("main", "metrics"))))

    first = dict(cluster.newest("worker-0").ports)
    second = dict(cluster.newest("worker-1").ports)

    assert first["metrics"] == first["main"] + 1
    assert second["main"] == first["main"] + 2


# Timeline.


def test_each_entry_says_what_it_follows_from() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.exit("worker-0", code=1)

    fell = next(one for one in cluster.job.timeline if one.reason == "FellBelowMinimum")
    ended_entry = next(one for one in cluster.job.timeline if one.reason == "AttemptEnded")

    assert fell.by == "settle"
    assert fell.cause.split(".")[1] == "0"
    assert ended_entry.cause == ""
    assert ended_entry.level == "warning"
    assert ended_entry.details["exitCode"] == 1
    assert ended_entry.details["budgetUsed"] == 1
    assert ended_entry.details["budgetLimit"] == 3
    assert 7_500 <= int(ended_entry.details["delayMs"]) <= 12_500


def test_the_timeline_keeps_the_newest_200_and_names_only_listed_reasons() -> None:
    cluster = Cluster()
    cluster.run()
    for _ in range(120):
        cluster.say(ev.ExecutorFellSilent(cluster.id("worker-0")))
        cluster.say(ev.ExecutorReturned(cluster.id("worker-0")))

    assert len(cluster.job.timeline) == 200
    assert set(cluster.reasons()) <= set(TOLD_REASONS)


def test_the_example_of_the_page_reads_as_it_should() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4)))
    cluster.wait(52_000)

    cluster.exit("worker-3", code=1)

    told = cluster.told("AttemptEnded")
    assert told.startswith("worker-3 attempt 1 crashed with code 1 after 52 s (application 1 of 3)")
    assert "; again in " in told


def test_words_for_times_and_replicas() -> None:
    assert [duration_words(ms) for ms in (0, 999, 7_600, 130_000, 9_000_000)] == [
        "0 ms",
        "999 ms",
        "8 s",
        "2 min",
        "2 h",
    ]
    assert span_words((Span("w", 0, 3), Span("ps", 1, 1))) == "w-0 to w-3, ps-1"
    many = tuple(Span("w", 2 * index, 2 * index) for index in range(20))
    assert span_words(many).endswith("and 12 more")


@pytest.mark.parametrize(
    ("kind", "files", "word"),
    [
        ("parquet", "x", "rows"),
        ("", "/d/*.parquet", "rows"),
        ("text", "x", "bytes"),
        ("", "x", "positions"),
    ],
)
def test_words_for_positions(kind: str, files: str, word: str) -> None:
    stream = StreamSpec("clicks", (Source(files),), format=kind)

    assert unit_words(spec(streams=(stream,)), "clicks@evaluator") == word


# Invariants really look.


def broken(cluster: Cluster, job: Job) -> str:
    world = replace(cluster.world, jobs={UID: job})
    with pytest.raises(AssertionError) as caught:
        invariants.check(world)
    return str(caught.value)


def test_invariants_notice_a_second_living_attempt() -> None:
    cluster = Cluster()
    cluster.run()
    replica = cluster.replica("worker-0")
    second = replace(replica.attempts[0], number=2)
    twice = replace(replica, attempts=(*replica.attempts, second), last_number=2)

    assert broken(cluster, with_replica(cluster, twice)).startswith("1:")


def test_invariants_notice_a_final_job_with_a_living_attempt_and_wrong_counts() -> None:
    cluster = Cluster()
    cluster.run()
    final = replace(cluster.job, phase=type(cluster.job.phase).FAILED)
    assert broken(cluster, final).startswith("3:")

    of_role = cluster.role()
    counts = (of_role.counts[0] + 1, *of_role.counts[1:])
    wrong = replace(cluster.job, roles={"worker": replace(of_role, counts=counts)})
    assert "counts" in broken(cluster, wrong)


def test_invariants_notice_a_replica_that_nothing_moves_on() -> None:
    cluster = Cluster()
    cluster.run()
    gone = replace(
        cluster.newest("worker-0"),
        phase=AttemptPhase.GONE,
        outcome=decide(Evidence(exit=ended(1)), at_ms=0),
    )
    stuck = replace(cluster.replica("worker-0"), attempts=(gone,), phase=ReplicaPhase.ACTIVE)

    assert broken(cluster, with_replica(cluster, stuck)).startswith("10:")


def test_invariants_notice_a_changed_outcome() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.say(ev.TrainerExited(cluster.id("worker-0"), ended(1)))
    before = cluster.world
    newest = cluster.newest("worker-0")
    assert newest.outcome is not None
    changed = replace(newest, outcome=replace(newest.outcome, exit_code=2))
    replica = replace(cluster.replica("worker-0"), attempts=(changed,))
    after = replace(before, jobs={UID: with_replica(cluster, replica)})

    with pytest.raises(AssertionError, match="4: the outcome"):
        invariants.check_change(before, after)


def with_replica(cluster: Cluster, replica: Replica) -> Job:
    of_role = chunks.put(cluster.role(), rules_of(cluster.job, cluster.role()), {0: replica})
    return replace(cluster.job, roles={"worker": of_role})


# Stored forms.


def test_machines_and_entries_survive_their_stored_form() -> None:
    cluster = Cluster()
    stream = StreamSpec("clicks", (Source("/d/*.txt"),))
    cluster.run(spec(role("worker", 3, data=(Reading("clicks"),)), streams=(stream,)))
    cluster.exit("worker-0", code=1)

    encoded = msgspec.msgpack.encode(cluster.job)
    assert msgspec.msgpack.decode(encoded, type=Job) == cluster.job
    admission = msgspec.msgpack.encode(cluster.world.admission)
    assert msgspec.msgpack.decode(admission, type=Admission) == cluster.world.admission
    for entry in cluster.entries:
        assert decode_entry(encode_entry(entry)) == entry
