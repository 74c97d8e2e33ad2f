"""The documents about queues (docs/api-documents.md §6)."""

from msgspec import UNSET, Struct, UnsetType

from primusd.views.documents import Number, Text


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class QueueAmounts(_Document, frozen=True, kw_only=True):
    """What a queue may use, or does; an amount that is absent is not limited."""

    cpu_milli: Number = UNSET
    memory_bytes: Number = UNSET
    gpus: Number = UNSET


class Queued(_Document, frozen=True, kw_only=True):
    """A job that waits in a queue."""

    uid: str
    name: str
    namespace: str
    priority: int
    since: str
    position: Number = UNSET
    """1 is next; absent while it waits for other jobs."""
    reason: Text = UNSET
    message: Text = UNSET


class Queue(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Queue"):
    """A queue: what its jobs may use together, and what they do."""

    name: str
    resource_version: str
    state: str
    """`open`, or `closed`: takes no new jobs, and what it has goes on."""
    quota: QueueAmounts
    used: QueueAmounts
    preemption: str
    origin: str
    """`default`, `file`, or `set` by a person, which the file does not change."""
    waiting: int
    running: int
    """Jobs that hold slots."""
    jobs: tuple[Queued, ...] | UnsetType = UNSET
    """Who waits, in order; where one queue is shown."""


class QueueList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="QueueList"):
    """All queues."""

    resource_version: str
    items: tuple[Queue, ...]
    cursor: Text = UNSET
