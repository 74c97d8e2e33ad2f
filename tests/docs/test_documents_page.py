"""The documents on docs/api-documents.md are what the types say, key by key."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from primusd.api.openapi import describe
from primusd.api.problems import ProblemDocument
from primusd.api.routes import LATER_PATHS, ROUTES
from primusd.ctl.main import LATER, VERBS
from primusd.views import (
    cluster_documents,
    documents,
    explanation_documents,
    feed_documents,
    peers,
)

PAGE = Path(__file__).parents[2] / "docs" / "api-documents.md"
BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)
KINDS: dict[str, type[msgspec.Struct]] = {
    "Job": documents.Job,
    "Replica": documents.Replica,
    "Event": documents.Event,
    "Stream": feed_documents.Stream,
    "Node": cluster_documents.Node,
    "Explanation": explanation_documents.Explanation,
    "Peers": peers.Peers,
}


def blocks() -> list[Any]:
    return [json.loads(text) for text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))
            if "\n{" not in text.strip()]  # fmt: skip


def of_kind(kind: str) -> list[Any]:
    return [one for one in blocks() if one.get("kind") == kind]


def unknown_keys(found: Any, schema: Any, schemas: Any, path: str) -> list[str]:
    """Return the paths of keys that the schema does not have."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if isinstance(found, list):
        inner = schema.get("items", {})
        return [key for one in found for key in unknown_keys(one, inner, schemas, f"{path}[]")]
    if not isinstance(found, dict) or "properties" not in schema:
        more = schema.get("additionalProperties")
        if isinstance(found, dict) and isinstance(more, dict):
            return [
                key
                for name, one in found.items()
                for key in unknown_keys(one, more, schemas, f"{path}.{name}")
            ]
        return []
    known = schema["properties"]
    wrong = [f"{path}.{key}" for key in found if key not in known]
    return wrong + [
        key
        for name, one in found.items()
        if name in known
        for key in unknown_keys(one, known[name], schemas, f"{path}.{name}")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_has_no_key_that_its_type_lacks(kind: str) -> None:
    schemas = json.loads(describe(ROUTES, KINDS.values()))["components"]["schemas"]
    examples = of_kind(kind)

    wrong = [key for one in examples for key in unknown_keys(one, schemas[kind], schemas, kind)]

    assert examples
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_can_be_read_as_its_type(kind: str) -> None:
    for example in of_kind(kind):
        found = msgspec.convert(example, KINDS[kind])

        assert msgspec.to_builtins(found)["kind"] == kind


def test_the_example_of_a_problem_is_one() -> None:
    problem = next(one for one in blocks() if "title" in one)

    assert set(problem) <= set(msgspec.to_builtins(msgspec.convert(problem, ProblemDocument)))


def test_every_path_of_the_table_is_served() -> None:
    page = PAGE.read_text(encoding="utf-8")
    served = {route.path.replace("{ns:[^/:{}]+}", "{ns}") for route in ROUTES}

    for path in ("/healthz", "/readyz", "/metrics", "/version", "/openapi.json"):
        assert f"`{path}`" in page or path in page
        assert path in served


def test_every_verb_of_primusctl_has_its_row() -> None:
    page = (PAGE.parent / "api-cli.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    named = {word for line in table for word in re.findall(r"`([a-z]+)[` ]", line)}

    assert set(VERBS) | LATER <= named


def test_every_path_that_answers_not_yet_belongs_to_a_later_part_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")

    for _, path, _ in LATER_PATHS:
        last = re.split(r"[:/]", path.replace("}", ""))[-1]
        assert last in page, path
