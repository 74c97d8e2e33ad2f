"""The API described as OpenAPI 3.1, made from the paths' table and the documents' own types."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from primusd import __version__
from primusd.api.problems import Handler, ProblemDocument

OPENAPI: web.AppKey[bytes] = web.AppKey("openapi", bytes)
_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]*(?:\{[^{}]*\}[^{}]*)*)?\}")
Schema = dict[str, Any]  # Any: OpenAPI's own form, written out and never read


class Route(Struct, frozen=True):
    """A path, what serves it, and what goes in and out."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: type[Struct] | None = None
    """None: no JSON document."""
    body: type[Struct] | type[dict[str, int]] | None = None
    query: tuple[str, ...] = ()


def describe(routes: Iterable[Route], others: Iterable[type[Struct]] = ()) -> bytes:
    """Return the description as JSON.

    Args:
        routes: Every path.
        others: Documents that no path has as its usual answer.
    """
    routes = tuple(routes)
    types = {
        ProblemDocument,
        *others,
        *(one.answer for one in routes),
        *(one.body for one in routes),
    }
    known = sorted((one for one in types if one is not None), key=lambda one: one.__name__)
    found, components = msgspec.json.schema_components(known, ref_template=_REFERENCE)
    schemas: dict[type, Schema] = dict(zip(known, found, strict=True))
    paths: Schema = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "primusd", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}],
        }
    )


def _operation(route: Route, schemas: Mapping[type, Schema]) -> Schema:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query
    ]
    answer: Schema = {"description": route.summary}
    if route.answer is not None:
        answer["content"] = {"application/json": {"schema": schemas[route.answer]}}
    problem = {"application/problem+json": {"schema": schemas[ProblemDocument]}}
    operation: Schema = {
        "summary": route.summary,
        "parameters": parameters,
        "responses": {"200": answer, "default": {"description": "A problem.", "content": problem}},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "content": {"application/json": {"schema": schemas[route.body]}}
        }
    return operation
