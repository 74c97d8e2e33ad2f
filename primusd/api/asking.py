"""What requests carry and answers look like: shared by all paths."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from primusd.api.auth import CALLER
from primusd.api.context import Context
from primusd.errors import (
    MalformedError,
    NotFoundError,
    NotLeaderError,
    PreconditionFailedError,
    Problem,
)
from primusd.job.ids import is_uid
from primusd.job.model import Job
from primusd.units import UnitError, parse_duration_ms

CONTEXT: web.AppKey[Context] = web.AppKey("context", Context)
DIGITS_MAX = 20
LIMIT_DEFAULT = 500
LIMIT_MAX = 5_000
_TRUE = frozenset({"1", "true", "yes"})
_FALSE = frozenset({"", "0", "false", "no"})
Body = TypeVar("Body")
Item = TypeVar("Item")


def context_of(request: web.Request) -> Context:
    """Return the daemon's parts.

    Raises:
        NotLeaderError: This daemon does not lead, or has not loaded its state yet.
    """
    context = request.app[CONTEXT]
    if context.engine.term == 0:
        raise NotLeaderError("this daemon does not lead yet")
    return context


def caller_of(request: web.Request) -> str:
    """Return who sent the request, as the journal keeps it."""
    return request[CALLER].name


def answer(
    document: Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a document as JSON, with its version as the entity tag."""
    sent = dict(headers or {})
    version = getattr(document, "resource_version", None)
    if isinstance(version, str):
        sent["ETag"] = f'"{version}"'
    return web.Response(
        body=msgspec.json.encode(document),
        status=status,
        content_type="application/json",
        headers=sent,
    )


def find_job(request: web.Request) -> Job:
    """Return the job that the path names: the live one of the name, else its newest, or the uid's.

    Raises:
        NotFoundError: There is none.
    """
    world = context_of(request).engine.world
    namespace, name = request.match_info["ns"], request.match_info["name"]
    if is_uid(name) and name in world.jobs:
        return world.jobs[name]
    live = world.admission.names.get((namespace, name))
    if live is not None and live in world.jobs:
        return world.jobs[live]
    ended = [
        uid
        for uid, job in world.jobs.items()
        if job.spec.name == name and job.spec.namespace == namespace
    ]
    if not ended:
        raise NotFoundError(
            f"there is no job {name} in namespace {namespace}", hint="primusctl list -A"
        )
    return world.jobs[max(ended)]


def flag(request: web.Request, name: str) -> bool:
    """Return a parameter that is true or false; absent is false.

    Raises:
        MalformedError: It is neither.
    """
    text = request.query.get(name, "").lower()
    if text in _TRUE or (name in request.query and text == ""):
        return True
    if text in _FALSE:
        return False
    raise _wrong_parameter(name, text, "true or false")


def number(request: web.Request, name: str, default: int, *, low: int = 0, high: int) -> int:
    """Return a parameter that counts.

    Raises:
        MalformedError: It is no whole number within the bounds.
    """
    text = request.query.get(name, "")
    if text == "":
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < DIGITS_MAX):
        raise _wrong_parameter(name, text, f"a whole number from {low} to {high}")
    if not low <= int(text) <= high:
        raise _wrong_parameter(name, text, f"a whole number from {low} to {high}")
    return int(text)


def choice(request: web.Request, name: str, words: Sequence[str], default: str) -> str:
    """Return a parameter out of a closed list of words.

    Raises:
        MalformedError: It is none of them.
    """
    text = request.query.get(name, default)
    if text not in words:
        raise _wrong_parameter(name, text, ", ".join(words))
    return text


def _wrong_parameter(name: str, found: str, allowed: str) -> MalformedError:
    problem = Problem(path=f"?{name}", found=found[:80], allowed=allowed)
    return MalformedError(f"the parameter {name} has to be {allowed}", errors=(problem,))


async def read_body(request: web.Request, form: type[Body]) -> Body:
    """Return the JSON body as a value of a type; an empty body is an empty object.

    Raises:
        MalformedError: It is no JSON, or has another form.
    """
    data = await request.read()
    try:
        return msgspec.json.decode(data or b"{}", type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"the body cannot be used: {error}") from error


def check_version(request: web.Request, *, since: int, now: int) -> None:
    """Compare `If-Match`, where it is given, with the versions at which the object was as it is.

    Args:
        request: That writes.
        since: Revision of the object's own last change.
        now: The version that its document shows, which what it reads may have moved on.

    Raises:
        PreconditionFailedError: It names another one.
    """
    given = request.headers.get("If-Match", "*").strip()
    versions = [part.strip(' "') for part in given.split(",")]
    known = (int(one) for one in versions if one.isdecimal() and len(one) < DIGITS_MAX)
    if given == "*" or any(since <= one <= now for one in known):
        return
    raise PreconditionFailedError(
        f"the object is at version {now}, If-Match names {given[:80]}", hint="get it again"
    )


def page(request: web.Request, items: Sequence[tuple[str, Item]]) -> tuple[tuple[Item, ...], str]:
    """Return the part of a list that was asked for, and the cursor of the next one, "" at the end.

    Args:
        request: Has `limit` and `cursor`.
        items: (key, item), in the order of the keys.
    """
    limit = number(request, "limit", LIMIT_DEFAULT, low=1, high=LIMIT_MAX)
    cursor = request.query.get("cursor", "")
    rest = [(key, item) for key, item in items if key > cursor]
    shown = rest[:limit]
    return tuple(item for _, item in shown), shown[-1][0] if len(rest) > limit else ""


def wants_labels(request: web.Request) -> Mapping[str, str]:
    """Return the labels that `?label=team=ranking` asks for, repeated or comma separated.

    Raises:
        MalformedError: One has no `=`.
    """
    found: dict[str, str] = {}
    for text in request.query.getall("label", []):
        for part in filter(None, text.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                raise _wrong_parameter("label", part, "key=value")
            found[key] = value
    return found


def time_parameter(request: web.Request, name: str, *, now_ms: int) -> int:
    """Return a parameter that is a time: RFC 3339, or back from now, `10m` or `10m ago`; 0 absent.

    Raises:
        MalformedError: It is neither.
    """
    text = request.query.get(name, "")
    if not text:
        return 0
    try:
        return max(1, now_ms - parse_duration_ms(text.removesuffix(" ago")))
    except UnitError:
        pass
    try:
        then = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        return max(1, int(then.timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        problem = Problem(f"?{name}", found=text[:80], allowed="10m, or 2026-01-02T03:04:05Z")
        raise MalformedError(f"{name} has to be a duration or a time", errors=(problem,)) from error
