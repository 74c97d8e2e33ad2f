"""What people and fate do to a running cluster: a table that grows with what there is to do."""

import random
from collections.abc import Callable

from primusd import core
from primusd.admission import events as adm
from primusd.datafeed.ledger import events as data
from primusd.job import events as ev
from primusd.job.ids import AttemptId, Span
from primusd.job.model import Job
from primusd.records import Event
from tests.simulation.cluster import Town
from tests.simulation.etcd_head import EtcdHead
from tests.simulation.executor import Executor
from tests.simulation.head import Head
from tests.simulation.host import Host
from tests.simulation.store import Store
from tests.simulation.words import late_words

Do = Callable[[Town, random.Random], None]


def _job(town: Town, rnd: random.Random) -> Job | None:
    known = [job for job in town.jobs.values() if not job.is_final] or list(town.jobs.values())
    return rnd.choice(known) if known else None


def _ask(make: Callable[[random.Random, Job], Event | None]) -> Do:
    """Return a person's request about a job."""

    def do(town: Town, rnd: random.Random) -> None:
        job = _job(town, rnd)
        event = make(rnd, job) if job is not None else None
        if job is not None and event is not None:
            town.ask(job.uid, event)

    return do


def _ask_node(kind: type) -> Do:
    """Return a person's request about a node."""

    def do(town: Town, rnd: random.Random) -> None:
        event: Event = kind(rnd.choice(tuple(town.hosts)))
        town.ask("", event)

    return do


def _ask_stream(make: Callable[[random.Random], Event]) -> Do:
    """Return a person's request about a stream."""

    def do(town: Town, rnd: random.Random) -> None:
        streams = [one for one in town.world.streams if one]
        if streams:
            town.ask(rnd.choice(streams), make(rnd))

    return do


def _some_replica(rnd: random.Random, job: Job) -> Event:
    role = rnd.choice(tuple(job.roles.values()))
    index = rnd.randrange(max(1, role.size))
    return ev.RestartRequested((Span(role.name, index, index),))


def _failed_replica(rnd: random.Random, job: Job) -> Event | None:
    """Ask that a replica that is over runs again, while its job goes on."""
    over = [
        Span(role.name, replica.index, replica.index)
        for role in job.roles.values()
        for chunk in role.chunks
        for replica in chunk.replicas
        if replica.phase in ("Failed", "Completed", "Retired", "Delayed")
    ]
    return ev.RestartRequested((rnd.choice(over),)) if over else None


def _suspend_and_resume(town: Town, rnd: random.Random) -> None:
    job = _job(town, rnd)
    if job is not None:
        town.ask(job.uid, ev.SuspendRequested())
        wait_ms = rnd.choice((5, 300, 3_000, 40_000))
        town.schedule.later(wait_ms, town.ask, job.uid, ev.ResumeRequested())


def _all_replicas(_rnd: random.Random, job: Job) -> Event:
    return ev.RestartRequested(
        tuple(Span(one.name, 0, one.size - 1) for one in job.roles.values() if one.size)
    )


def _scale(rnd: random.Random, job: Job) -> Event:
    return ev.RoleScaled(rnd.choice(tuple(job.roles)), rnd.choice((1, 2, 3, 5)))


def _patch(_rnd: random.Random, job: Job) -> Event:
    return ev.SpecPatched(job.spec, {})


def _finish(rnd: random.Random, _job: Job) -> Event:
    return ev.VerdictRequested(rnd.choice(("Succeeded", "Failed")), "a person says so")


def _drill(rnd: random.Random, job: Job) -> Event:
    fault = rnd.choice(("kill", "preempt", "pause", "loseNode"))
    role = rnd.choice(tuple(job.roles))
    return ev.DrillRequested(fault, (Span(role, 0, 0),) if rnd.random() < 0.7 else ())


def _forget(town: Town, rnd: random.Random) -> None:
    final = [job for job in town.jobs.values() if job.is_final]
    if final:
        town.ask(rnd.choice(final).uid, ev.ForgetRequested(600_000))


def _move(town: Town, rnd: random.Random) -> None:
    job = _job(town, rnd)
    if job is not None:
        town.ask("", adm.DemandMoved(job.uid, rnd.choice((1, 99))))


def _set_queue(town: Town, rnd: random.Random) -> None:
    quota = rnd.choice(({}, {"gpu": 1}, {"memoryBytes": 8 << 30}))
    event = adm.QueueSet(
        rnd.choice(("default", "prod")),
        quota,
        rnd.choice(("never", "lowerPriority")),
        is_open=rnd.random() < 0.7,
    )
    town.ask("", event)


def _rush(town: Town, rnd: random.Random) -> None:
    """Let a job of highest priority come that wants all there is, and may push others out."""
    town.ask("", adm.QueueSet("default", {}, "lowerPriority"))
    town.ask("", adm.QueueSet("prod", {}, "lowerPriority"))
    town.submit_rush(rnd.choice((1, 2)))


def _exclude(town: Town, rnd: random.Random) -> None:
    node = rnd.choice(tuple(town.hosts))
    town.ask("", adm.NodeExclusionRequested(node, 60_000, reason="x"))
    _tend_later(town, rnd, node)


def _load(town: Town, rnd: random.Random) -> None:
    node = rnd.choice(tuple(town.hosts))
    if town.head is not None:
        event = adm.NodeLoadMeasured(node, rnd.choice((0, 6_000)), rnd.choice((0, 8 << 30)))
        town.head.tell("", event, by="node")


# Heads and their store.


def _kill_head(town: Town, rnd: random.Random) -> None:
    if town.head is not None:
        town.kill_head(town.head, lands=rnd.random() < 0.5)
    town.schedule.later(rnd.choice((0, 500, 5_000, 45_000)), _start_head, town)


def _start_head(town: Town) -> None:
    if town.head is None:
        town.start_head()


def _kill_head_at_an_entry(town: Town, rnd: random.Random) -> None:
    """Die while the n-th entry from now on is written, before or after it is there."""
    head = town.head
    if head is None:
        return
    left = rnd.randrange(1, 12)
    lands = rnd.random() < 0.5
    revision = head.revision + left

    def look() -> None:
        if not head.is_dead and head.revision + 1 >= revision and head.is_writing:
            town.kill_head(head, lands=lands)
            town.schedule.later(rnd.choice((0, 3_000)), _start_head, town)

    town.checks.at_step(head, look)


def _change_leader(town: Town, rnd: random.Random) -> None:
    """Let another head lead while the old one has not noticed."""
    old = town.head
    if old is not None and old.term:
        town.start_head()
        town.schedule.later(rnd.choice((1_000, 9_000)), lambda: town.kill_head(old, lands=False))


def _freeze_head(town: Town, rnd: random.Random) -> None:
    if town.head is not None:
        town.head.freeze(rnd.choice((1_000, 8_000, 70_000)))


def _set_clock(town: Town, rnd: random.Random) -> None:
    if town.head is not None:
        town.head.clock.skew_ms += rnd.choice((-86_400_000, -3_000, 3_000, 86_400_000))


def _fill_disk(town: Town, rnd: random.Random) -> None:
    town.store.is_full = True
    town.schedule.later(rnd.choice((100, 4_000, 40_000)), _empty_disk, town.store)


def _empty_disk(store: Store) -> None:
    store.is_full = False


def _slow_disk(town: Town, rnd: random.Random) -> None:
    town.store.latency_ms = rnd.choice((1, 50, 700))


def _back_up(town: Town, _rnd: random.Random) -> None:
    if town.etcd is None:
        town.backup = town.store.copy()


def _set_back(town: Town, rnd: random.Random) -> None:
    """Start a daemon on an older copy of the store, or on an empty one."""
    if town.etcd is not None:
        # Terms are revisions of etcd: whoever puts a copy back has to raise them (docs/state.md).
        return
    for head in town.heads:
        if not head.is_dead:
            town.kill_head(head, lands=False)
    town.has_lost_knowledge = True
    # A store that forgot its terms needs a clock that did not: hosts obey no lower term.
    town.heads[-1].clock.skew_ms = max([0, *(head.clock.skew_ms for head in town.heads)])
    town.checks.forget()
    town.store.restore(town.backup if rnd.random() < 0.7 else None)
    town.schedule.later(1_000, _start_head, town)


def _stop_member(town: Town, rnd: random.Random) -> None:
    if town.etcd is not None:
        number = rnd.randrange(3)
        town.etcd.cluster.stop(number)
        town.schedule.later(rnd.choice((300, 5_000, 40_000)), town.etcd.cluster.go_on, number)


def _kill_member(town: Town, rnd: random.Random) -> None:
    if town.etcd is not None:
        number = rnd.randrange(3)
        town.etcd.cluster.kill(number)
        town.schedule.later(rnd.choice((300, 5_000, 40_000)), town.etcd.cluster.go_on, number)


def _cut_etcd_off(town: Town, rnd: random.Random) -> None:
    """Cut whoever leads off from some members, or from all."""
    if town.etcd is None or not isinstance(town.head, EtcdHead):
        return
    numbers = rnd.choice(((0,), (1, 2), (0, 1, 2)))
    ways = {(town.head.host, number) for number in numbers}
    town.etcd.cluster.cut |= ways
    mend = town.etcd.cluster.cut.difference_update
    town.schedule.later(rnd.choice((1_000, 8_000, 30_000)), mend, ways)


def _let_another_lead(town: Town, _rnd: random.Random) -> None:
    if isinstance(town.head, EtcdHead):
        town.head.resign()


# Hosts, executors, the network.


def _host(town: Town, rnd: random.Random) -> Host:
    return rnd.choice(tuple(town.hosts.values()))


def _executor(town: Town, rnd: random.Random) -> Executor | None:
    alive = [executor for _, executor in town.executors()]
    return rnd.choice(alive) if alive else None


def _lose_host(town: Town, rnd: random.Random) -> None:
    host = _host(town, rnd)
    host.lose_power()
    _tend_later(town, rnd, host.name)
    town.schedule.later(rnd.choice((2_000, 50_000, 200_000)), host.boot_up)


def _tend_later(town: Town, rnd: random.Random, node: str) -> None:
    """Let somebody do something about a host, once everybody knows of its trouble."""
    events: tuple[Event, ...] = (
        adm.ForgiveRequested(node),
        adm.CordonRequested(node),
        adm.NodeLoadMeasured(node, 1_000, 0),
        adm.NodeExclusionRequested(node, 60_000),
        adm.DrainRequested(node),
    )
    town.schedule.later(rnd.choice((10_000, 38_000)), town.ask, "", rnd.choice(events))


def _cut_host(town: Town, rnd: random.Random) -> None:
    """C41: cut a host off; what runs there runs on, and comes back."""
    host = _host(town, rnd)
    if host.name not in town.wire.cut:
        town.wire.cut.add(host.name)
        cut_ms = rnd.choice((3_000, 20_000, 55_000))
        silent = [one.attempt for one in host.live if one.has_trainer]
        town.schedule.later(cut_ms, _mend_host, town, host, cut_ms, town.head, silent)


def _mend_host(
    town: Town, host: Host, cut_ms: int, head: Head | None, silent: list[AttemptId]
) -> None:
    town.wire.cut.discard(host.name)
    if cut_ms > 50_000 and head is not None and town.is_undisturbed(head, cut_ms):
        town.checks.was_silent(town, silent)


def _full_host(town: Town, rnd: random.Random) -> None:
    host = _host(town, rnd)
    host.fork_fails = True
    town.schedule.later(rnd.choice((5_000, 60_000)), _room, host)


def _room(host: Host) -> None:
    host.fork_fails = False


def _kill_executor(town: Town, rnd: random.Random) -> None:
    executor = _executor(town, rnd)
    if executor is not None:
        executor.kill()


def _freeze_executor(town: Town, rnd: random.Random) -> None:
    executor = _executor(town, rnd)
    if executor is not None:
        executor.freeze(rnd.choice((4_000, 25_000, 120_000)))


def _break_line(town: Town, rnd: random.Random) -> None:
    executor = _executor(town, rnd)
    if executor is not None and executor.line is not None:
        executor.line.end()


def _lose_files(town: Town, rnd: random.Random) -> None:
    town.files.is_gone = True
    town.schedule.later(rnd.choice((5_000, 30_000)), _find_files, town)


def _find_files(town: Town) -> None:
    town.files.is_gone = False


# Words of edges: late, doubled, or of somebody who believes what is no longer so.


def _echo(town: Town, rnd: random.Random) -> None:
    """Let what an edge said some time ago come once more."""
    said = [one for one in town.checks.said if one.by not in ("settle", "engine")]
    if said and town.head is not None:
        town.head.propose((rnd.choice(said),))


def _notice_preemption(town: Town, rnd: random.Random) -> None:
    executor = _executor(town, rnd)
    if executor is not None and town.head is not None:
        event = ev.PreemptionNoticed(executor.attempt, 5_000)
        town.head.tell(executor.attempt.job, event, by="launcher:local")


def _late_words(town: Town, rnd: random.Random) -> None:
    """Say, for a while, all that the tables ignore: what comes too late changes nothing."""
    for after_ms in (0, 300, 2_000, 11_000, 32_000, 70_000):
        town.schedule.later(after_ms, _say_late_words, town, rnd)


def _say_late_words(town: Town, rnd: random.Random) -> None:
    job = _job(town, rnd)
    if job is not None and town.head is not None and not town.is_calm:
        for proposal in list(late_words(town.world, job)):
            town.head.propose((proposal,))


def _tick(town: Town, _rnd: random.Random) -> None:
    """Let the timer's word come to everybody, due or not."""
    if town.head is not None:
        for machine in core.machines(town.world):
            town.head.tell(machine, ev.TimePassed(), by="timer")


def _rumour(make: Callable[[AttemptId], Event]) -> Do:
    """Return a word about some attempt that was ever known, true or not: it harms nobody."""

    def do(town: Town, rnd: random.Random) -> None:
        job = _job(town, rnd)
        if job is None or town.head is None:
            return
        names = [
            AttemptId(job.uid, role.name, replica.index, one.number)
            for role in job.roles.values()
            for chunk in role.chunks
            for replica in chunk.replicas
            for one in replica.attempts
        ]
        if names:
            town.checks.rumours += 1
            town.head.tell(job.uid, make(rnd.choice(names)), by="launcher:local")

    return do


DEEDS: dict[str, Do] = {
    "cancel": _ask(lambda _rnd, _job: ev.CancelRequested("enough")),
    "suspend": _ask(lambda _rnd, _job: ev.SuspendRequested()),
    "resume": _ask(lambda _rnd, _job: ev.ResumeRequested()),
    "restart one": _ask(_some_replica),
    "restart what is over": _ask(_failed_replica),
    "restart all": _ask(_all_replicas),
    "suspend and resume": _suspend_and_resume,
    "scale": _ask(_scale),
    "patch": _ask(_patch),
    "finish": _ask(_finish),
    "drill": _ask(_drill),
    "forget": _forget,
    "move in queue": _move,
    "cordon": _ask_node(adm.CordonRequested),
    "drain node": _ask_node(adm.DrainRequested),
    "uncordon": _ask_node(adm.UncordonRequested),
    "forgive": _ask_node(adm.ForgiveRequested),
    "exclude node": _exclude,
    "remove node": _ask_node(adm.RemovalRequested),
    "measure load": _load,
    "set queue": _set_queue,
    "rush": _rush,
    "pause stream": _ask_stream(lambda _rnd: data.PauseRequested()),
    "resume stream": _ask_stream(lambda _rnd: data.ResumeRequested()),
    "keep savepoint": _ask_stream(lambda _rnd: data.SavepointRequested("s")),
    "keep for checkpoint": _ask_stream(lambda _rnd: data.CheckpointKept("s")),
    "restore savepoint": _ask_stream(lambda _rnd: data.RestoreRequested("s")),
    "import savepoint": _ask_stream(
        lambda rnd: data.SavepointImported(rnd.choice(("s", "in")), ())
    ),
    "drop savepoint": _ask_stream(lambda _rnd: data.SavepointDropped("s")),
    "skip task": _ask_stream(lambda rnd: data.TaskSkipRequested(0, 0, rnd.choice((0, 300)), "no")),
    "retry task": _ask_stream(lambda rnd: data.TaskRetryRequested(0, 0, rnd.choice((0, 300)))),
    "kill head": _kill_head,
    "kill head at an entry": _kill_head_at_an_entry,
    "change leader": _change_leader,
    "freeze head": _freeze_head,
    "set clock": _set_clock,
    "fill disk": _fill_disk,
    "slow disk": _slow_disk,
    "back up": _back_up,
    "set store back": _set_back,
    "stop etcd member": _stop_member,
    "kill etcd member": _kill_member,
    "cut etcd off": _cut_etcd_off,
    "let another lead": _let_another_lead,
    "lose host": _lose_host,
    "cut host": _cut_host,
    "host cannot fork": _full_host,
    "kill executor": _kill_executor,
    "freeze executor": _freeze_executor,
    "break line": _break_line,
    "lose files": _lose_files,
    "echo": _echo,
    "late words": _late_words,
    "tick": _tick,
    "notice preemption": _notice_preemption,
    "rumour: launched": _rumour(ev.AttemptLaunched),
    "rumour: waiting": _rumour(lambda one: ev.AttemptWaiting(one, "no room")),
    "rumour: not launched": _rumour(lambda one: ev.LaunchFailed(one, "x", is_permanent=False)),
    "rumour: preempted": _rumour(lambda one: ev.PreemptionNoticed(one, 5_000)),
    "rumour: silent": _rumour(ev.ExecutorFellSilent),
    "rumour: expired": _rumour(ev.ExecutorExpired),
    "rumour: hung": _rumour(lambda one: ev.TrainerHung(one, "no step")),
    "rumour: stop failed": _rumour(lambda one: ev.StopFailed(one, was_delivered=True)),
}
