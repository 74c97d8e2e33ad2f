"""What the journal holds: entries of records, each an event at a machine. Pure values."""

import msgspec
from msgspec import Struct

from primusd.admission.events import AdmissionEvent
from primusd.datafeed.ledger.events import StreamEvent
from primusd.job.events import JobEvent

SCHEMA = 1
"""Raised when a stored form changes so that older code cannot read it."""

ADMISSION = ""
"""Key of the admission machine."""

Event = JobEvent | AdmissionEvent | StreamEvent


class Record(Struct, frozen=True, array_like=True):
    """One event at one machine."""

    machine: str
    """`""` admission, `<uid>` a job, `<uid>/<stream>` a stream."""
    cause: int
    """Index in this entry of the record it follows from; -1: it came from outside."""
    by: str
    """`uid:1000 (ann)`, `token:ci`, `executor`, `launcher:local`, `liveness`, `timer`, `settle`,
    `source`, `engine`, or the machine it is a consequence of: `job`, `stream`, `admission`.
    """
    event: Event


class Entry(Struct, frozen=True, array_like=True):
    """The records of one step: one transaction."""

    schema: int
    """First field for ever; a reader that finds a higher one refuses to start."""
    term: int
    revision: int
    """+1 per entry, across terms."""
    at_ms: int
    """Journal time of the step; every event of it has it."""
    records: tuple[Record, ...]


class Proposal(Struct, frozen=True):
    """An event that an edge proposes."""

    machine: str
    event: Event
    by: str


encode_entry = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(Entry).decode


def job_of(machine: str) -> str:
    """Return the job uid that a machine belongs to, "" for admission."""
    return machine.partition("/")[0]
