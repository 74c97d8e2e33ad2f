"""F13: the first cause is the end that began the trouble, not its last symptom."""

from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.budgets import HEALTHY_MS
from primusd.job.model import FirstCause
from primusd.job.spec import Restart
from tests.state.job_driver import Cluster, budgets, ended, role, spec


def first(cluster: Cluster) -> FirstCause:
    found = cluster.job.first_cause
    assert found is not None
    return found


def crash_again(cluster: Cluster, name: str, *, lines: str = "", after_ms: int = 20_000) -> None:
    """Let a replica crash and come up again."""
    cluster.exit(name, code=1, lines=lines)
    cluster.wait(after_ms)
    cluster.bring_up()


def test_F13_after_retries_the_first_attempt_is_named_and_not_the_last() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, budgets=budgets(application=2))))

    crash_again(cluster, "worker-1", lines="KeyError: 'label'")
    crash_again(cluster, "worker-1", lines="EOFError", after_ms=60_000)
    cluster.exit("worker-1", code=1, lines="EOFError")

    assert cluster.job.verdict is not None
    assert (first(cluster).attempt, first(cluster).ends) == ("worker-1/1", 3)
    assert first(cluster).last_line == "KeyError: 'label'"
    cluster.check_replay()


def test_F13_what_fails_because_of_another_is_no_first_cause() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, delay_ms=1_000)))

    cluster.exit("worker-1", code=1, lines="ValueError: label out of range")
    cluster.exit("worker-0", code=134, lines="connection reset by peer")

    assert (first(cluster).attempt, first(cluster).ends) == ("worker-1/1", 2)


def test_F13_trouble_is_over_after_ten_minutes_of_health() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2)))
    crash_again(cluster, "worker-1", lines="old")

    cluster.wait(HEALTHY_MS)
    cluster.exit("worker-0", code=1, lines="new")

    assert (first(cluster).attempt, first(cluster).ends, first(cluster).last_line) == (
        "worker-0/1", 1, "new",
    )  # fmt: skip


def test_F13_a_long_delay_is_no_health() -> None:
    cluster = Cluster()
    slow = replace(role(), restart=Restart("replica", 2 * HEALTHY_MS, 2 * HEALTHY_MS))
    cluster.run(spec(slow))

    crash_again(cluster, "worker-0", after_ms=2 * HEALTHY_MS + HEALTHY_MS // 2)
    cluster.exit("worker-0", code=1)

    assert (first(cluster).attempt, first(cluster).ends) == ("worker-0/1", 2)


def test_F13_a_lost_attempt_that_had_completed_caused_nothing() -> None:
    cluster = Cluster()
    cluster.run()
    attempt = cluster.id("worker-0")
    cluster.say(ev.ExecutorExpired(attempt))
    assert first(cluster).cause == "Lost"

    cluster.gone("worker-0", attempt, exit=ended(0))

    assert cluster.job.first_cause is None
    assert cluster.phases() == ["Completed"]
