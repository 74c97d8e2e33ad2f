"""Faults made in the code on purpose: a guard gone, two lines swapped, a fence dropped.

Each is one replacement in the source of one function, made in this process only. A simulator that
does not notice one of them proves nothing where that line stands.
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import CodeType, FunctionType

from msgspec import Struct

from tests.simulation.script import Deed, PlannedJob, Script

ONE_JOB = (PlannedJob(0, 0, ("stream",)),)
FORGOTTEN = Script(387, ONE_JOB, (Deed(60_000, "forget"), Deed(95_000, "change leader")))
CLOCK_SET = Script(7, ONE_JOB, tuple(Deed(1_001 + one, "set clock", one) for one in (0, 2, 3)))
CUT_OFF = Script(
    7, (PlannedJob(0, 0, ("long work",)),), (Deed(2_500, "cut host", 1), Deed(2_600, "cut host", 2))
)

GIVEN_UP = Script(
    39,
    (PlannedJob(0, 20_000),),
    (Deed(579, "kill head at an entry", 37_819), Deed(3_536, "lose host", 61_935)),
)

SHORT_OF_ROOM = Script(
    54558,
    (PlannedJob(0, 0, ("two workers", "more workers", "elastic", "all GPUs", "short start")),),
    hosts=2,
)


class Mutant(Struct, frozen=True):
    """One fault."""

    name: str
    function: str
    """`module:name`."""
    old: str
    new: str
    found_by: int | Script
    """What notices it: a seed, shrunk to its script so that it does not change with the tables."""


def function_of(one: Mutant) -> FunctionType:
    """Return the function that has the fault."""
    module, _, name = one.function.partition(":")
    function = inspect.unwrap(attrgetter(name)(importlib.import_module(module)))
    assert isinstance(function, FunctionType)
    return function


@contextmanager
def mutated(one: Mutant) -> Iterator[None]:
    """Have the fault in the code meanwhile."""
    function = function_of(one)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(one.old) == 1, f"{one.name}: {one.old!r} is not once in {one.function}"
    kept = function.__code__
    function.__code__ = _code_of(source.replace(one.old, one.new), function)
    try:
        yield
    finally:
        function.__code__ = kept


def _code_of(source: str, function: FunctionType) -> CodeType:
    """Return the code of a function's changed source."""
    namespace: dict[str, object] = {}
    code = compile(source, function.__code__.co_filename, "exec")
    exec(code, function.__globals__, namespace)
    found = namespace[function.__name__]
    assert isinstance(found, FunctionType)
    return found.__code__


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "last caused, first applied",
        "primusd.core:_Draft.take",
        "queue.popleft()",
        "queue.pop()",
        Script(
            56,
            (PlannedJob(2, 500, ()),),
            (Deed(4700, "suspend and resume", 16472),),
            weather="storm",
        ),
    ),
    Mutant(
        "what settle decides is not recorded",
        "primusd.core:_Draft._apply_one",
        "self.records.append(Record(machine, cause, by, event))",
        "self.records += [Record(machine, cause, by, event)] * (by != 'settle')",
        Script(17, (PlannedJob(1, 500, ()),), (Deed(3147, "change leader", 676),)),
    ),
    Mutant(
        "consequences are told of the state before",
        "primusd.core:_Draft._apply",
        "module.consequences(before, self._find(machine), proposed.event)",
        "module.consequences(before, before, proposed.event)",
        Script(1, (PlannedJob(2, 0, ()),)),
    ),
    Mutant(
        "recovery applies what a snapshot has already",
        "primusd.core:replay",
        "or covers.get(record.machine, 0) >= entry.revision",
        "",
        Script(
            53,
            (PlannedJob(0, 20000, ("drain", "stream", "epochs")),),
            (
                Deed(8183, "kill head", 34209),
                Deed(44378, "slow disk", 47217),
                Deed(90115, "kill head", 57791),
            ),
            hosts=2,
            weather="windy",
        ),
    ),
    Mutant(
        "a snapshot leaves chunks out that changed",
        "primusd.state.snapshots:_encode_job",
        "is_same = number < len(old) and old[number] is chunk",
        "is_same = number < len(old)",
        Script(53, (PlannedJob(0, 20000, ("drain",)),), (Deed(190849, "kill head", 18113),)),
    ),
    Mutant(
        "a forgotten job is looked for",
        "primusd.recovery:_forgotten",
        "if job_of(machine) in ends",
        "if False",
        FORGOTTEN,
    ),
    Mutant(
        "the record of a job leaves its streams",
        "primusd.core:_Draft._store",
        "if after is None and isinstance(before, Job):",
        "if False:",
        FORGOTTEN,
    ),
    Mutant(
        "an end is charged twice",
        "primusd.job.budgets:charge",
        "charges=(*kept, one)",
        "charges=(*kept, one, one)",
        Script(0, (PlannedJob(1, 0, ("servers",)),), weather="rough"),
    ),
    Mutant(
        "an exit is taken again after the end",
        "primusd.job.attempt:_vanished",
        "if attempt.outcome is None:",
        "if True:",
        Script(0, (PlannedJob(1, 0, ()),)),
    ),
    Mutant(
        "a quarantine is never lifted",
        "primusd.job.attempt:_vanished",
        "is_quarantined=False",
        "is_quarantined=attempt.is_quarantined",
        Script(19, (PlannedJob(0, 0, ("more workers",)),), weather="rough"),
    ),
    Mutant(
        "ports do not rest",
        "primusd.admission.nodes:rest_ports",
        "dict.fromkeys(ports, until_ms)",
        "dict.fromkeys((), until_ms)",
        Script(23, (PlannedJob(0, 0, ("drain",)),), hosts=2, weather="rough"),
    ),
    Mutant(
        "a freed slot stays taken",
        "primusd.admission.machine:_slot_freed",
        "return _shed(state, replace(demand, busy=demand.busy - freed), at, freed=freed)",
        "return state",
        Script(0, (PlannedJob(1, 0, ("servers",)),)),
    ),
    Mutant(
        "a withdrawn demand keeps its slots",
        "primusd.admission.machine:_demand_withdrawn",
        "busy=grants.members(event.busy)",
        "busy=frozenset(demand.held)",
        Script(1, (PlannedJob(2, 0, ()),)),
    ),
    Mutant(
        "admission does not hear that the job asks for nothing",
        "primusd.job.demand:changes",
        "if had and (asked is None or was_withdrawn):",
        "if False:",
        Script(0, (PlannedJob(1, 0, ()),)),
    ),
    Mutant(
        "a job ends before its attempts are gone",
        "primusd.job.lifecycle:all_gone",
        "role.counts[Count.NOT_GONE]",
        "role.counts[Count.LIVING]",
        Script(0, (PlannedJob(1, 0, ("servers",)),)),
    ),
    Mutant(
        "who has no result at the end is not retired",
        "primusd.job.lifecycle:_all_gone",
        "replace(_all_retired(job), ended_ms=at.at_ms)",
        "replace(job, ended_ms=at.at_ms)",
        Script(0, (PlannedJob(1, 0, ("servers",)),), weather="rough"),
    ),
    Mutant(
        "no deadline of an attempt is kept",
        "primusd.job.counts:due_of",
        "attempt = replica.newest",
        "attempt = None",
        Script(0, (PlannedJob(1, 0, ("more workers", "servers")),), weather="rough"),
    ),
    Mutant(
        "the drain has no end",
        "primusd.job.scheduling:drain_end_ms",
        "return job.draining_ms +",
        "return (1 << 60) +",
        Script(23, (PlannedJob(0, 0, ("drain",)),)),
    ),
    Mutant(
        "a restarted role leaves its members as they are",
        "primusd.job.scheduling:_stop_decided",
        "(Count.STALE, StopReason.RESTARTING,",
        "(Count.UNSETTLED, StopReason.RESTARTING,",
        Script(6, (PlannedJob(2, 500, ("stream",)),)),
    ),
    Mutant(
        "a code other than 0 is a completion",
        "primusd.job.outcome:_crashed",
        "Cause.CRASHED",
        "Cause.COMPLETED",
        Script(20, (PlannedJob(0, 500, ("chief",)),), weather="rough"),
    ),
    Mutant(
        "silence is not noticed",
        "primusd.liveness:Liveness.look",
        "elif now_ms - self._told.get(attempt, -REPEAT_MS) >= REPEAT_MS:",
        "elif False:",
        CUT_OFF,
    ),
    Mutant(
        "what nobody knows is ended",
        "primusd.sweep:is_over",
        "return True if is_buried else None",
        "return True",
        Script(
            54,
            (PlannedJob(0, 500, ("more workers",)),),
            (
                Deed(1710, "set store back", 35802),
                Deed(4060, "set store back", 1656),
            ),
        ),
    ),
    Mutant(
        "an executor forgets that it is to stop",
        "primusd.executor.machine:_stopped",
        "if state.stop is None:",
        "if False:",
        Script(0, (PlannedJob(1, 0, ("servers",)),)),
    ),
    Mutant(
        "a range is leased twice",
        "primusd.datafeed.ledger.draft:StreamDraft.hold",
        "tasks.held(state, Range(lease.lo, lease.hi))",
        "state",
        Script(0, (PlannedJob(1, 0, ("chief", "stream")),), hosts=2, weather="windy"),
    ),
    Mutant(
        "a position is counted that nobody took",
        "primusd.datafeed.ledger.beats:_take",
        "taken_count = after.position - lease.position",
        "taken_count = after.hi - lease.position",
        Script(6, (PlannedJob(2, 500, ("stream",)),)),
    ),
    Mutant(
        "an ended reader keeps its leases",
        "primusd.datafeed.ledger.beats:_ended_reader",
        "draft.drop_reader(event.attempt)",
        "pass",
        Script(
            46,
            (PlannedJob(1, 0, ("more workers", "stream")),),
            (Deed(2622, "drain node", 38708),),
            hosts=2,
        ),
    ),
    Mutant(
        "journal time follows the wall clock",
        "primusd.journal_time:JournalTime.now_ms",
        "return self._now_ms",
        "return self._clock.wall_ms()",
        CLOCK_SET,
    ),
    Mutant(
        "a report says nothing of the exit",
        "primusd.api.reports:_at_the_end",
        "if report.exit is not None and",
        "if report.exit is not None and report.exit.code and",
        Script(1, (PlannedJob(2, 0, ()),)),
    ),
    Mutant(
        "nobody asks for the end of a quarantined attempt",
        "primusd.job.duties:_of_attempt",
        "case AttemptPhase.GONE if attempt.is_quarantined:",
        "case AttemptPhase.GONE if False:",
        GIVEN_UP,
    ),
    Mutant(
        "a stream without rows ends anew after its close",
        "primusd.datafeed.ledger.machine:apply",
        'state.phase == after.phase == "Done"',
        'state.phase == "Done"',
        Script(
            70021,
            (PlannedJob(0, 0, ("stream", "staging")), PlannedJob(1, 0, ("stream", "staging"))),
        ),
    ),
    Mutant(
        "an elastic gang waits on while its members are given up",
        "primusd.job.gates:assembled_ms",
        "patience_ms = job.spec.ready_timeout_ms // 2",
        "patience_ms = 1 << 40",
        SHORT_OF_ROOM,
    ),
)
"""Each with the seed that finds it."""
