"""The documents that explain: Explanation and Replay (docs/api-documents.md §9)."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from primusd.views.documents import Event, Job, Replica, Text

Json = Any  # a command's own values


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class Estimate(_Document, frozen=True, kw_only=True):
    """When it is likely to be over, and what that is taken from."""

    in_ms: int
    source: str = field(name="from")
    error_ms: int
    """It may be so much earlier or later."""


class Explanation(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Explanation"):
    """A question about a job, and its answer."""

    job: str
    job_uid: str
    namespace: str
    question: str
    answer: str
    reason: str
    """Of the closed list of docs/explain.md."""
    subject: Text = UNSET
    """A replica, a role or a stream; absent: the job."""
    since: Text = UNSET
    numbers: Mapping[str, int]
    would_fit: tuple[str, ...] | UnsetType = UNSET
    estimate: Estimate | UnsetType = UNSET
    because: tuple[str, ...]
    """Ids of events."""


class ExplanationList(
    _Document, frozen=True, kw_only=True, tag_field="kind", tag="ExplanationList"
):
    """All that can be asked of a job now."""

    resource_version: str
    items: tuple[Explanation, ...]


class Reach(_Document, frozen=True, kw_only=True):
    """What a replay began with."""

    job_from: str
    """Revision of the base, or of the submit, that the job and its streams were replayed from."""
    cluster_from: Text = UNSET
    """The same of the queue and the nodes; absent: they are not known, so what they alone tell
    (why it waits for room) is left out."""


class Replay(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Replay"):
    """A job as it was after an entry of the journal."""

    revision: str
    at: str
    """Of the moment that was asked for; not before that of the entry."""
    reach: Reach
    job: Job
    replicas: tuple[Replica, ...]
    events: tuple[Event, ...]
    """That the entry made."""
    plan: tuple[Mapping[str, Json], ...]
    """What had to be in motion."""
    explanations: tuple[Explanation, ...]
