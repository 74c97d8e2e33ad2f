"""Errors as `application/problem+json` (RFC 9457), one form for every path."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from secrets import token_hex

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from primusd.errors import (
    MalformedError,
    NotLeaderError,
    PhaseConflictError,
    PrimusdError,
    Problem,
    ResourceVersionTooOldError,
    StoreUnavailableError,
    TooManyRequestsError,
)

log = structlog.get_logger()

REQUEST_ID = "X-Request-Id"
LEADER = "X-Primus-Leader"
"""Beside a refusal for want of leadership, of what was not even begun: whom to ask, "" nobody."""
ID: web.RequestKey[str] = web.RequestKey("id", str)
RETRY_AFTER_S = 1
_CODES = {
    400: "InvalidRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "InvalidRequest",
    413: "TooLarge",
    429: "TooManyRequests",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProblemDocument(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is wrong, in the form of RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    request_id: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    errors: tuple[Problem, ...] | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    event: str | UnsetType = UNSET
    oldest: str | UnsetType = UNSET


def problem_document(error: PrimusdError, request_id: str = "") -> ProblemDocument:
    """Return the document of an error."""
    phase = event = oldest = ""
    match error:
        case PhaseConflictError():
            phase, event = error.phase, error.event
        case ResourceVersionTooOldError():
            oldest = str(error.oldest)
        case _:
            pass
    return ProblemDocument(
        type=_type(error.code),
        title=_plain(error.message),
        status=error.status,
        code=error.code,
        request_id=request_id or UNSET,
        hint=_plain(error.hint) or UNSET,
        errors=tuple(_plain_problem(one) for one in error.errors) or UNSET,
        phase=phase or UNSET,
        event=event or UNSET,
        oldest=oldest or UNSET,
    )


def _plain(text: str) -> str:
    """Return a text that can be sent: headers may bring bytes that are no text."""
    return text.encode(errors="replace").decode()


def _plain_problem(problem: Problem) -> Problem:
    return replace(problem, path=_plain(problem.path), found=_plain(problem.found))


def _type(code: str) -> str:
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in code)
    return f"https://primusd.invalid/problems/{words.strip('-')}"


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each request an id and turn every error that is meant for a person into a problem."""
    request_id = token_hex(8)
    request[ID] = request_id
    try:
        response = await handler(request)
    except PrimusdError as error:
        response = problem_response(error, request_id)
    except web.RequestPayloadError as error:
        response = problem_response(MalformedError(f"the body cannot be read: {error}"), request_id)
    except ConnectionResetError:
        # Whoever asked went before the answer began; nobody hears this one.
        response = web.Response(status=HTTPStatus.REQUEST_TIMEOUT)
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        response = _http_problem(request, error, request_id)
    if not response.prepared:
        response.headers[REQUEST_ID] = request_id
    return response


def problem_response(error: PrimusdError, request_id: str) -> web.Response:
    """Return the answer that tells an error; 429 and 503 say when to try again."""
    headers = {}
    if isinstance(error, TooManyRequestsError | StoreUnavailableError) or error.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, NotLeaderError) and error.leader is not None:
        headers[LEADER] = error.leader
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="primusd"'
    if error.status >= 500:
        log.warning("request.failed", request=request_id, code=error.code, text=error.message)
    return _response(problem_document(error, request_id), headers)


def _http_problem(request: web.Request, error: web.HTTPException, request_id: str) -> web.Response:
    code = _CODES.get(error.status, "InvalidRequest")
    title = _plain(f"{HTTPStatus(error.status).phrase}: {request.method} {request.path}")
    if error.status == 413:
        title = "the body is larger than this path takes"
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    document = ProblemDocument(
        type=_type(code), title=title, status=error.status, code=code, request_id=request_id
    )
    return _response(document, headers)


def _response(document: ProblemDocument, headers: Mapping[str, str]) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(document),
        status=document.status,
        content_type="application/problem+json",
        headers=headers,
    )
