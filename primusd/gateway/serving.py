"""The routes of a gateway: lend a batch, take word that it was used."""

import hmac
import json

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler

from primusd.gateway.bodies import KINDS, body_of
from primusd.gateway.loans import Loan
from primusd.gateway.source import Source

WAIT_S = 20.0
WAIT_MAX_S = 300.0
KEY_HEADER = "Primus-Key"
SOURCES = web.AppKey("sources", dict[str, Source])
KEY = web.AppKey("key", str)


def application(sources: dict[str, Source], key: str) -> web.Application:
    """Return the application.

    Args:
        sources: By stream.
        key: That each request has to show, in `key=` or a header; "" none.
    """
    app = web.Application(middlewares=[_check])
    app[SOURCES] = sources
    app[KEY] = key
    app.router.add_get("/", _list)
    app.router.add_get("/{stream}/rows", _rows, allow_head=False)
    app.router.add_post("/{stream}/batches/{batch}:{verb}", _settle)
    return app


@web.middleware
async def _check(request: web.Request, handler: Handler) -> web.StreamResponse:
    shown = request.headers.get(KEY_HEADER) or request.query.get("key", "")
    if not hmac.compare_digest(shown.encode(), request.app[KEY].encode()):
        raise _problem(401, "a key is needed", "ask the daemon: it redirects to here with one")
    return await handler(request)


async def _list(request: web.Request) -> web.Response:
    sources = request.app[SOURCES].values()
    return web.json_response(
        {
            "streams": [
                {
                    "name": one.name,
                    "lent": len(one.loans),
                    "returned": one.loans.returned_count,
                    "ended": one.is_ended,
                }
                for one in sources
            ]
        }
    )


async def _rows(request: web.Request) -> web.StreamResponse:
    source, form = _source(request), _form(request)
    if request.query.get("follow", "") in ("1", "true"):
        return await _follow(request, source, form)
    loan = await source.borrow(_wait_s(request))
    if loan is None:
        return _nothing(source)
    try:
        body = await anyio.to_thread.run_sync(body_of, loan.batch.data, form)
        answer = web.Response(body=body, headers=_headers(request, source, loan, form))
        await answer.prepare(request)
        await answer.write_eof()
    except BaseException:
        source.give_back(loan.name)
        raise
    return answer


async def _follow(request: web.Request, source: Source, form: str) -> web.StreamResponse:
    """Send batch after batch; each counts as used once the client's host has it."""
    answer = web.StreamResponse(headers={"Content-Type": KINDS[form]})
    await answer.prepare(request)
    while not source.is_ended:
        loan = await source.borrow(WAIT_S)
        if loan is None:
            continue
        source.hold(loan)
        try:
            await answer.write(await anyio.to_thread.run_sync(body_of, loan.batch.data, form))
            await answer.write(b"")
        except BaseException:
            source.give_back(loan.name)
            raise
        source.use(loan.name)
    await answer.write_eof()
    return answer


async def _settle(request: web.Request) -> web.Response:
    source, name = _source(request), request.match_info["batch"]
    match request.match_info["verb"]:
        case "commit":
            had = source.use(name)
        case "release":
            had = source.give_back(name)
        case "renew":
            had = source.renew(name)
        case verb:
            raise _problem(404, f"no verb {verb!r}", "commit, release or renew")
    if not had:
        raise _problem(
            409,
            f"batch {name} is not yours: used, given back, or over its {source.loans.lease_s:g} s",
            "its rows come again to whoever asks next; renew what takes longer",
        )
    return web.Response(status=204)


def _nothing(source: Source) -> web.Response:
    if source.is_ended:
        return web.Response(status=204, headers={"Primus-End": "true"})
    return web.Response(status=204, headers={"Primus-End": "false", "Retry-After": "1"})


def _headers(request: web.Request, source: Source, loan: Loan, form: str) -> dict[str, str]:
    batch = request.url.origin() / source.name / "batches" / f"{loan.name}:commit"
    return {
        "Content-Type": KINDS[form],
        "Primus-Batch": loan.name,
        "Primus-Commit": str(batch.with_query(key=request.app[KEY])),
        "Primus-Rows": str(loan.batch.rows),
        "Primus-Epoch": str(loan.batch.epoch),
        "Primus-Lease-Seconds": f"{source.loans.lease_s:g}",
        "Primus-End": "false",
    }


def _source(request: web.Request) -> Source:
    sources, name = request.app[SOURCES], request.match_info["stream"]
    if name not in sources:
        raise _problem(404, f"no stream {name!r}", f"there are {', '.join(sources)}")
    return sources[name]


def _form(request: web.Request) -> str:
    accepted = request.headers.get("Accept", "")
    form = request.query.get("form", "")
    if not form:
        named = (name for name, kind in KINDS.items() if kind in accepted and name != "lines")
        form = next(named, "ndjson")
    if form not in KINDS:
        raise _problem(400, f"form={form!r}", f"one of {', '.join(KINDS)}")
    return form


def _wait_s(request: web.Request) -> float:
    told = request.query.get("wait", "")
    try:
        seconds = float(told or WAIT_S)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_MAX_S:
        raise _problem(400, f"wait={told!r}", f"seconds from 0 to {WAIT_MAX_S:g}")
    return seconds


def _problem(status: int, detail: str, hint: str) -> web.HTTPException:
    kind = {400: web.HTTPBadRequest, 401: web.HTTPUnauthorized, 404: web.HTTPNotFound}
    body = json.dumps({"status": status, "detail": detail, "hint": hint})
    return kind.get(status, web.HTTPConflict)(text=body, content_type="application/problem+json")
