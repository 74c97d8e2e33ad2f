"""Documents of a stream's tasks, and of the proof that every row is accounted for."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import UNSET

from primusd.datafeed.ledger.accounts import TASK_PHASES, Flaw, TaskRange, Verified, tasks, verify
from primusd.datafeed.ledger.model import OPEN_END, Stream
from primusd.views import feed_documents as documents
from primusd.views.times import known_time

OVER_PHASES = frozenset({"Failed", "Closed"})


def task_documents(stream: Stream, phase: str) -> Iterator[documents.Task]:
    """Yield the tasks in a phase, in every phase where it is ""."""
    for one in (phase,) if phase else TASK_PHASES:
        for found in tasks(stream, one):
            yield _task(found)


def _task(found: TaskRange) -> documents.Task:
    return documents.Task(
        phase=found.phase,
        epoch=found.epoch,
        unit=found.unit,
        location=found.location,
        lo=found.lo,
        hi=UNSET if found.hi == OPEN_END else found.hi,
        position=found.position if found.position >= 0 else UNSET,
        replica=found.attempt.label if found.attempt is not None else UNSET,
        token=found.token or UNSET,
        fault=found.kind or UNSET,
        text=found.text or UNSET,
        by=found.by or UNSET,
        head=found.head.hex() or UNSET,
    )


def dead_document(found: TaskRange) -> documents.DeadTask:
    """Return the document of a range that is left out."""
    return documents.DeadTask(
        epoch=found.epoch,
        unit=found.unit,
        location=found.location,
        lo=found.lo,
        hi=UNSET if found.hi == OPEN_END else found.hi,
        fault=found.kind,
        text=found.text,
        by=found.by,
        head=found.head.hex() or UNSET,
        at=known_time(found.at_ms),
    )


def verification(stream: Stream) -> documents.Verification:
    """Return the proof for a stream."""
    found = verify(stream)
    has_ended = stream.is_listed and stream.epochs_done >= max(1, stream.spec.epochs)
    is_known = found.listed >= 0 and not found.leased and not found.waiting
    complete = has_ended or is_known
    left = "" if complete or stream.phase not in OVER_PHASES else _left_words(found)
    texts = (found.text, _unsized_words(stream) if has_ended else "", left)
    return documents.Verification(
        ok=found.ok and not left,
        stream=stream.name,
        unit=found.unit,
        epochs=stream.spec.epochs,
        listed=found.listed if found.listed >= 0 else UNSET,
        done=found.done,
        leased=found.leased,
        waiting=found.waiting if found.waiting >= 0 else UNSET,
        skipped=found.skipped,
        dead=found.dead,
        repeated_max=found.repeated,
        rewound=stream.rewound,
        carried=stream.carried_count,
        left_out=dict(Counter(one.kind for one in tasks(stream, "dead"))),
        gaps=tuple(_flaw(one) for one in found.gaps),
        overlaps=tuple(_flaw(one) for one in found.overlaps),
        complete=complete,
        text="; ".join(filter(None, texts)) or UNSET,
    )


def _unsized_words(stream: Stream) -> str:
    """Return in words what the numbers of a stream that was read cannot say."""
    if not stream.unsized_units:
        return ""
    files = "1 file was" if stream.unsized_units == 1 else f"{stream.unsized_units} files were"
    return f"{files} left out without knowing where they end, and counted as 1 each"


def _left_words(found: Verified) -> str:
    """Return in words what a stream that is over leaves unread."""
    if found.listed < 0:
        return f"it is over, and some {found.unit} of it were never read: not all were listed"
    return f"it is over, and {found.leased + found.waiting} {found.unit} of it were never read"


def _flaw(flaw: Flaw) -> documents.Flaw:
    return documents.Flaw(
        epoch=flaw.epoch, unit=flaw.unit, location=flaw.location, lo=flaw.lo, hi=flaw.hi
    )


def verification_list(found: Iterable[documents.Verification]) -> documents.VerificationList:
    """Return several proofs as one; it holds when each does."""
    items = tuple(found)
    return documents.VerificationList(ok=all(one.ok for one in items), items=items)
