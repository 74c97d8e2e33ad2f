"""How a call of primusctl ends: the exit codes, and the errors that lead to them."""

from collections.abc import Mapping, Sequence

from primusd.ctl.heads import TAKES_NO_TOKEN

OK = 0
INTERRUPTED = 130
FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNREACHABLE = 5
TIMED_OUT = 6
JOB_FAILED = 10
JOB_CANCELLED = 11
JOB_DEADLINE = 12

_UNKNOWN_HINT = "--token-file FILE, or PRIMUS_TOKEN_FILE; the daemon writes one beside its socket"
_BY_STATUS = {400: USAGE, 404: NOT_FOUND, 409: CONFLICT, 412: CONFLICT, 422: USAGE}


class CtlError(Exception):
    """Ends the call: one line on standard error, more below it where there is more to say.

    Attributes:
        message: What is wrong, in one sentence.
        hint: What to try; "" where the message says it.
        exit_code: Of the process.
        details: Further lines, one per fault.
    """

    def __init__(
        self, message: str, *, hint: str = "", exit_code: int = FAILED, details: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
        self.details = tuple(details)


class DetachedError(CtlError):
    """Ctrl-C while waiting: nothing went wrong, and the job runs on."""


class ApiError(CtlError):
    """The daemon answered with a problem.

    Attributes:
        status: The HTTP status.
        code: The word that programs compare.
    """

    def __init__(self, status: int, problem: Mapping[str, object]) -> None:
        super().__init__(
            str(problem.get("title") or f"the daemon answered {status}"),
            hint=_UNKNOWN_HINT if status == 401 else str(problem.get("hint") or ""),
            exit_code=_BY_STATUS.get(status, FAILED),
            details=_details(problem),
        )
        self.status = status
        self.code = str(problem.get("code") or "")


class UnreachableError(CtlError):
    """No daemon answers."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "start it with: primusd",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint, exit_code=UNREACHABLE, details=details)


class NobodyLeadsError(UnreachableError):
    """None of the heads that were asked does what is asked.

    Attributes:
        said: By address.
    """

    def __init__(self, said: Mapping[str, str]) -> None:
        count = "the head that was asked" if len(said) == 1 else f"the {len(said)} heads asked"
        message = f"none of {count} leads" if len(said) > 1 else f"{count} does not lead"
        hint = "again in a moment; primusctl leader --address URL shows what one of them knows"
        if TAKES_NO_TOKEN in said.values():
            message += " and takes the token that was found"
            hint = (
                "again in a moment, or --token-file with a token of a head that is there; those of "
                "[auth] tokens, the same for all heads, are good at each"
            )
        super().__init__(
            message,
            hint=hint,
            details=[f"{address}: {words}" for address, words in said.items()],
        )
        self.said = dict(said)


def not_yet(what: str) -> CtlError:
    """Return the error for what the design has and this version does not carry out."""
    return CtlError(f"{what} is not carried out by this version of primusd yet", exit_code=USAGE)


def fault_lines(errors: object) -> tuple[str, ...]:
    """Return a line for each entry of a problem's `errors`."""
    if not isinstance(errors, list | tuple):
        return ()
    return tuple(_fault_line(one) for one in errors if isinstance(one, Mapping))


def _details(problem: Mapping[str, object]) -> tuple[str, ...]:
    """Return the faults that the title does not tell already."""
    lines = fault_lines(problem.get("errors"))
    title = str(problem.get("title") or "")
    return () if len(lines) == 1 and lines[0].partition(": found")[0] in title else lines


def _fault_line(fault: Mapping[str, object]) -> str:
    where = str(fault.get("at") or "")
    line = f"{where}: {fault.get('path') or ''}" if where else str(fault.get("path") or "")
    found, allowed = fault.get("found"), fault.get("allowed")
    said = []
    if found:
        said.append(f"found {found}")
    if allowed:
        shown = ", ".join(str(one) for one in allowed) if isinstance(allowed, list) else allowed
        said.append(f"allowed: {shown}")
    if fault.get("hint"):
        said.append(str(fault["hint"]))
    return f"{line}: {'; '.join(said)}" if said else line


def verdict_exit_code(status: Mapping[str, object]) -> int:
    """Return the exit code for a job that ended with this status."""
    match status.get("phase"):
        case "Succeeded":
            return OK
        case "Cancelled":
            return JOB_CANCELLED
        case _:
            verdict = status.get("verdict")
            reason = verdict.get("reason") if isinstance(verdict, Mapping) else ""
            is_limit = reason in ("DeadlineExceeded", "ReplicaHoursUsed")
            return JOB_DEADLINE if is_limit else JOB_FAILED
