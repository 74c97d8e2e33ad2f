"""Every error that primusd shows to a person, with the code that programs compare."""

from msgspec import Struct


class Problem(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One fault in what a person sent, as it appears in `errors` of problem+json."""

    path: str
    """Where in the document: `roles.worker.memroy`."""
    at: str = ""
    """`file:line:column`, where the file is known."""
    found: str = ""
    allowed: str | tuple[str, ...] = ""
    hint: str = ""
    """What to do: `did you mean resources.memory?`."""

    def sentence(self) -> str:
        """Return the problem in one line: `job.yaml:9:15: roles.a.memroy: …`."""
        where = ": ".join(part for part in (self.at, self.path) if part)
        allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
        if self.hint.startswith("did you mean"):
            # The nearest name says it; the full list is for programs.
            allowed = ""
        parts = (
            f"found {self.found}" if self.found else "",
            f"allowed: {allowed}" if allowed else "",
            self.hint,
        )
        what = "; ".join(part for part in parts if part)
        return ": ".join(part for part in (where, what) if part)


class PrimusdError(Exception):
    """A mistake or a failure that is told to a person in one sentence.

    Attributes:
        code: The word of `docs/api-documents.md` §7 that programs compare.
        status: The HTTP status it is answered with.
        hint: What to try; empty when the message says it.
    """

    code = "InvalidRequest"
    status = 400

    def __init__(self, message: str, *, hint: str = "", errors: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.errors = errors


class ConfigError(PrimusdError):
    """The configuration cannot be used; `errors` has every fault with `file:line`."""

    code = "InvalidConfig"


class SpecError(PrimusdError):
    """A job file is well-formed but wrong; `errors` has every fault at once."""

    code = "InvalidSpec"
    status = 422


class NotYetError(SpecError):
    """A job file asks for something that this build does not carry out yet."""

    code = "NotYet"


class MalformedError(PrimusdError):
    """A document or a message cannot be decoded at all."""


class UnauthorizedError(PrimusdError):
    """No token, or one that is not known."""

    code = "Unauthorized"
    status = 401


class ForbiddenError(PrimusdError):
    """The caller is known and may not do this."""

    code = "Forbidden"
    status = 403


class NotFoundError(PrimusdError):
    """There is no such object."""

    code = "NotFound"
    status = 404


class ResourceVersionTooOldError(PrimusdError):
    """A watch asks for revisions that are no longer kept."""

    code = "ResourceVersionTooOld"
    status = 410

    def __init__(self, message: str, *, oldest: int) -> None:
        super().__init__(message, hint="list again and watch from the list's resourceVersion")
        self.oldest = oldest


class ConflictError(PrimusdError):
    """The request contradicts what is so; subclasses say how."""

    code = "PhaseConflict"
    status = 409


class NameTakenError(ConflictError):
    """A job of that name lives in the namespace."""

    code = "NameTaken"


class KeyReusedError(ConflictError):
    """The idempotency key was used with another spec."""

    code = "KeyReused"


class PhaseConflictError(ConflictError):
    """A refused cell of a transition table.

    Attributes:
        phase: The phase the machine is in.
        event: The name of the event that has no place there.
    """

    def __init__(self, message: str, *, phase: str, event: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.phase = phase
        self.event = event


class QueueClosedError(ConflictError):
    """The queue takes no new jobs."""

    code = "QueueClosed"


class ImmutableFieldError(ConflictError):
    """A field of the spec that cannot change while the job lives."""

    code = "ImmutableField"


class PreconditionFailedError(PrimusdError):
    """`If-Match` names another version than the one that is stored."""

    code = "PreconditionFailed"
    status = 412


class WedgedError(ConflictError):
    """The machine stopped on a bug of ours; its processes run on."""

    code = "Wedged"


class TooLargeError(PrimusdError):
    """A body, a file or an entry exceeds its bound."""

    code = "TooLarge"
    status = 413


class TooManyRequestsError(PrimusdError):
    """The caller's rate or a bounded queue is full; comes with Retry-After."""

    code = "TooManyRequests"
    status = 429


class NoGatewayError(PrimusdError):
    """Nobody hands rows out by HTTP just now."""

    code = "NoGateway"
    status = 503


class NotLeaderError(PrimusdError):
    """This daemon does not lead.

    Attributes:
        leader: The address of who does, "" nobody or not known; None: what was asked may have been
            done all the same, or whoever leads is this one in a moment.
    """

    code = "NotLeader"
    status = 503

    def __init__(self, message: str, *, hint: str = "", leader: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.leader = leader


class StoreUnavailableError(PrimusdError):
    """The journal cannot be written or read now."""

    code = "StoreUnavailable"
    status = 503


class StoreFullError(StoreUnavailableError):
    """The disk or the store's quota is full."""

    code = "StoreFull"


class DeposedError(StoreUnavailableError):
    """A newer term wrote to the journal: this daemon no longer leads."""

    code = "NotLeader"


class LeaderLostError(StoreUnavailableError):
    """The leader went while it worked for a follower: nobody knows whether it was done."""

    code = "LeaderLost"


class NewerSchemaError(PrimusdError):
    """The store was written by a newer version of primusd; this one must not touch it."""

    code = "NewerSchema"
    status = 503


class StateDirectoryInUseError(PrimusdError):
    """Another daemon holds the lock of the state directory.

    Attributes:
        pid: Of the holder; 0 when it could not be told.
    """

    code = "StateDirectoryInUse"

    def __init__(self, message: str, *, pid: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid
