"""Why a demand waits, said by the code that decides it (`admission/turns.py`), with its numbers."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.admission.backfill import Start
from primusd.admission.lacking import free_by_node, sum_of, why_never
from primusd.admission.model import Admission, Demand
from primusd.admission.queues import QUOTA_FIELDS, queue_named, used_of
from primusd.admission.rooms import Amount
from primusd.admission.shortage import why_no_place
from primusd.admission.turns import Outcome, Round, Turn, in_turn, lines_of, places_of
from primusd.admission.usage import OrderKey, book_of
from primusd.job.phases import NodePhase
from primusd.job.wording import duration_words
from primusd.units import bytes_words

NAMED_MAX = 3


class Wait(Struct, frozen=True):
    """Why a demand waits: one reason of the closed list, its sentence, and what decides it."""

    reason: str
    """WaitingForSlots, WaitingForQueue, WaitingForQuota, WaitingForJob or WaitingForNode."""
    message: str
    numbers: Mapping[str, int] = {}
    """Among them `jobsAhead`, and for cpuMilli, memoryBytes, gpus and ports what is `…Needed` and
    `…Free`; of a quota `…Used` and `…Limit`; `startsInMs` where deadlines tell it."""
    firsts: tuple[str, ...] = ()
    """Uids of the jobs ahead that it must not delay."""
    waits_for: tuple[str, ...] = ()
    """Uids of the jobs that must have Succeeded before."""
    making_room: tuple[str, ...] = ()
    """Uids of the jobs that are being stopped for it."""
    starts_ms: int = 0
    """Journal time at which it could start if everybody ran to the deadline; 0 not known."""
    starts_by: str = ""
    """Uid of the job by whose deadline that is."""


class Survey:
    """What becomes of the demands that wait, worked out once as far as somebody asks.

    It judges whom admission looks at; who is plainly behind others is judged when asked for.
    """

    def __init__(self, state: Admission, *, at_ms: int) -> None:
        self.state = state
        self.at_ms = at_ms
        self.free: Amount = sum_of(free_by_node(state).values())
        """What the ready nodes have left together; ports that rest are not taken off."""
        ready = [node for node in state.nodes.values() if node.phase is NodePhase.READY]
        self.ready_count = len(ready)
        self.resting_count = sum(len(node.resting_ports) for node in ready)
        self._round = Round(state, at_ms=at_ms)
        self._coming = in_turn(lines_of(state), self._round, state.demands)
        self._next = next(self._coming, None)
        self._places = places_of(state)
        self._judged: dict[str, Outcome] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._names: Mapping[str, str] = {}

    def outcome(self, job: str) -> Outcome | None:
        """Return what becomes of a job's demand; None: it does not wait."""
        place = self._places.get(job)
        if place is None:
            return None
        if job not in self._outcomes:
            self._judge_until(place.key)
            self._outcomes[job] = self._outcome(self.state.demands[job])
        return self._outcomes[job]

    def _judge_until(self, key: OrderKey) -> None:
        while self._next is not None and self._places[self._next.job].key <= key:
            self._judged[self._next.job] = self._round.judge(self._next)
            self._next = next(self._coming, None)

    def _outcome(self, demand: Demand) -> Outcome:
        outcome = self._judged.get(demand.job)
        if outcome is None:
            key = self._places[demand.job].key
            outcome = self._round.behind(demand, is_first=lambda one: self._places[one].key < key)
        if outcome.turn is Turn.BEHIND:
            never = why_never(self.state, demand)
            outcome = Outcome(Turn.NEVER, outcome.lacking, sentence=never) if never else outcome
        return outcome

    def ahead(self, job: str) -> int | None:
        """Return how many jobs come before it in its queue; None: it does not wait for a turn."""
        place = self._places.get(job)
        return None if place is None or job in self.state.after else place.ahead

    def ahead_in_all(self, job: str) -> int:
        """Return how many jobs come before it in all queues."""
        place = self._places.get(job)
        return 0 if place is None else place.ahead_in_all

    def start_of(self, demand: Demand) -> Start | None:
        """Return when a demand that lacks room or quota could start at the latest."""
        return self._round.start_of(demand)

    def name(self, job: str) -> str:
        """Return how people call a job."""
        if not self._names and self.state.names:
            self._names = {
                uid: name if namespace == "default" else f"{namespace}/{name}"
                for (namespace, name), uid in self.state.names.items()
            }
        return self._names.get(job, job)


def why_waits(survey: Survey, demand: Demand) -> Wait | None:
    """Return why a demand has not got what it asks for; None: it waits for nothing."""
    outcome = survey.outcome(demand.job)
    if outcome is None:
        return None
    if outcome.turn is Turn.AFTER:
        return _for_jobs(survey, demand)
    if not survey.ready_count:
        return Wait("WaitingForNode", _no_node(survey.state), {"nodesReady": 0})
    match outcome.turn:
        case Turn.NEVER:
            return Wait("WaitingForNode", outcome.sentence, {"nodesReady": survey.ready_count})
        case Turn.OVER_QUOTA:
            return _over_quota(demand, outcome)
        case Turn.QUOTA:
            return _for_quota(survey, demand, outcome)
        case _:
            return _for_room(survey, demand, outcome)


def _for_jobs(survey: Survey, demand: Demand) -> Wait:
    waited_for = survey.state.after[demand.job]
    names = ", ".join(survey.name(one) for one in waited_for[:NAMED_MAX])
    more = f" and {len(waited_for) - NAMED_MAX} more" if waited_for[NAMED_MAX:] else ""
    over_first = survey.state.over_first.get(demand.job, ())
    if all(one in over_first for one in waited_for):
        verb = "are" if waited_for[1:] else "is"
        message = f"waits until {names}{more} {verb} over: it goes on from positions left there"
    else:
        message = f"waits until {names}{more} {'have' if waited_for[1:] else 'has'} Succeeded"
    return Wait("WaitingForJob", message, {"jobs": len(waited_for)}, waits_for=waited_for)


def _over_quota(demand: Demand, outcome: Outcome) -> Wait:
    parts = [
        f"{amount_words(key, asked)}, "
        f"queue {demand.queue} may use {shown_amount(key, limit)} in all"
        for key, (asked, limit) in outcome.quota.items()
    ]
    numbers = {
        f"{_key(key)}{word}": value
        for key, (asked, limit) in outcome.quota.items()
        for word, value in (("Needed", asked), ("Limit", limit))
    }
    return Wait("WaitingForQuota", f"asks for {'; '.join(parts)}: it never starts", numbers)


def _for_quota(survey: Survey, demand: Demand, outcome: Outcome) -> Wait:
    used = used_of(survey.state, demand.queue)
    parts, numbers = [], {"jobsAhead": survey.ahead_in_all(demand.job)}
    for key in outcome.quota:
        limit = queue_named(survey.state, demand.queue).quota[key]
        needed = getattr(outcome.lacking, QUOTA_FIELDS[key])
        taken = getattr(used, QUOTA_FIELDS[key])
        parts.append(
            f"{amount_words(key, needed)}, queue {demand.queue} uses {shown_amount(key, taken)} of "
            f"{shown_amount(key, limit)}"
        )
        name = _key(key)
        numbers |= {f"{name}Needed": needed, f"{name}Used": taken, f"{name}Limit": limit}
    wait = Wait("WaitingForQuota", f"needs {'; '.join(parts)}", numbers)
    return _with_start(survey, demand, outcome, wait)


def _for_room(survey: Survey, demand: Demand, outcome: Outcome) -> Wait:
    if outcome.turn is Turn.STARTS:
        return Wait("WaitingForQueue", "has just come", {"jobsAhead": 0})
    ahead = survey.ahead_in_all(demand.job)
    parts, numbers = _short_of(survey, outcome.lacking)
    waits = f"{ahead} {'job is' if ahead == 1 else 'jobs are'} ahead" if ahead else ""
    if outcome.turn is Turn.BEHIND and not parts:
        first = f"; the first that it must not delay is {survey.name(outcome.firsts[0])}"
        return Wait(
            "WaitingForQueue",
            f"{waits or 'its turn has not come'} in {demand.queue}{first}",
            numbers | {"jobsAhead": ahead},
            firsts=outcome.firsts,
        )
    short = None if parts else why_no_place(survey.state, demand, at_ms=survey.at_ms)
    if short is not None:
        message = short.text + (f"; {waits}" if waits else "")
        told = {**numbers, **short.numbers, "jobsAhead": ahead}
        wait = Wait("WaitingForPlacement", message, told, firsts=outcome.firsts)
        return _with_start(survey, demand, outcome, wait)
    at_once = " at once" if demand.is_gang else ""
    needs = "; ".join(parts) or "more room on one node than any of them has free"
    message = f"needs{at_once} {needs}" + (f"; {waits}" if waits else "")
    wait = Wait("WaitingForSlots", message, numbers | {"jobsAhead": ahead}, firsts=outcome.firsts)
    return _with_start(survey, demand, outcome, wait)


def _with_start(survey: Survey, demand: Demand, outcome: Outcome, wait: Wait) -> Wait:
    """Return the wait with who makes room for it, or when it could start at the latest."""
    stopped = tuple(
        job
        for job in book_of(survey.state.demands).releasing
        if survey.state.demands[job].evicted_for == demand.job
    )
    start = None if outcome.turn is Turn.BEHIND else survey.start_of(demand)
    message, numbers = wait.message, dict(wait.numbers)
    if stopped:
        names = ", ".join(survey.name(one) for one in stopped[:NAMED_MAX])
        message += f"; {names} {'is' if len(stopped) == 1 else 'are'} being stopped for it"
    if start is not None:
        numbers["startsInMs"] = start.at_ms - survey.at_ms
        message += (
            f"; starts within {duration_words(start.at_ms - survey.at_ms)}, "
            f"by the deadline of {survey.name(start.by_job)}"
        )
    return Wait(
        wait.reason,
        message,
        numbers,
        firsts=wait.firsts,
        making_room=stopped,
        starts_ms=start.at_ms if start is not None else 0,
        starts_by=start.by_job if start is not None else "",
    )


def _no_node(state: Admission) -> str:
    if not state.nodes:
        return "no node is known yet"
    phases = sorted({node.phase.value.lower() for node in state.nodes.values()})
    return f"none of {len(state.nodes)} nodes is ready ({', '.join(phases)})"


def _short_of(survey: Survey, lacking: Amount) -> tuple[list[str], dict[str, int]]:
    """Return what there is too little of, in words, and the numbers of all that is lacking."""
    resting = survey.resting_count
    parts: list[str] = []
    numbers: dict[str, int] = {}
    for key, needed, there in (
        ("gpu", lacking.gpu, survey.free.gpu),
        ("cpuMilli", lacking.cpu_milli, survey.free.cpu_milli),
        ("memoryBytes", lacking.memory_bytes, survey.free.memory_bytes),
        ("ports", lacking.port_count, survey.free.port_count - resting),
    ):
        if needed:
            numbers |= {f"{_key(key)}Needed": needed, f"{_key(key)}Free": max(0, there)}
        if needed > there:
            rest = f" ({resting} rest for a while after their last use)" if resting else ""
            kept_back = rest if key == "ports" else ""
            parts.append(
                f"{amount_words(key, needed)}, {shown_amount(key, max(0, there))} free{kept_back}"
            )
    return parts, numbers


def _key(key: str) -> str:
    return "gpus" if key == "gpu" else key


def shown_amount(key: str, value: int) -> str:
    """Return an amount by the key of a quota, or of ports: `2.5`, `3 GiB`."""
    match key:
        case "cpuMilli":
            return f"{value / 1000:g}"
        case "memoryBytes":
            return bytes_words(value)
        case _:
            return str(value)


def amount_words(key: str, value: int) -> str:
    """Return an amount with its unit: `1 GPU`, `2.5 CPUs`, `3 GiB of memory`."""
    words = {"gpu": "GPUs", "cpuMilli": "CPUs", "memoryBytes": "of memory", "ports": "ports"}
    is_one = value == (1000 if key == "cpuMilli" else 1)
    word = words[key].removesuffix("s") if is_one and key != "memoryBytes" else words[key]
    return f"{shown_amount(key, value)} {word}"
