"""What a stream says of a function that transforms its rows."""

import re
from collections.abc import Mapping

from primusd.job.spec import TRANSFORM_MEMORY_BYTES, StreamSpec, Transform
from primusd.jobfile.document import show_value
from primusd.jobfile.section import Section, check_text, is_mapping
from primusd.units import format_bytes

TRANSFORM_FIELDS = ("transform",)
WORKERS_MAX = 64
MEMORY_MIN, MEMORY_MAX = 256 << 20, 1 << 40
_KEYS = ("function", "workers", "rows", "parameters", "memory")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
FORM = 'module:function, as "prep.clicks:features"'


def read_transform(section: Section) -> Transform | None:
    """Return the transform of a stream; what is wrong goes to the findings.

    Args:
        section: The stream's.
    """
    if not section.has("transform"):
        return None
    value = section.raw("transform")
    if not is_mapping(value):
        return Transform(_function(section, "transform"))
    inner = Section(section.findings, section.at("transform"), value, _KEYS)
    if not inner.has("function"):
        inner.findings.add(inner.path, hint=f"function is missing: {FORM}")
    return Transform(
        _function(inner, "function"),
        workers=inner.count("workers", 1, low=1, high=WORKERS_MAX),
        may_drop=inner.choice("rows", ("same", "mayDrop"), "same") == "mayDrop",
        parameters=_parameters(inner),
        memory_bytes=_memory(inner),
    )


def render_transform(stream: StreamSpec) -> dict[str, object]:
    """Return the keys of a stream that `read_transform` reads."""
    found = stream.transform
    if found is None:
        return {}
    more = {
        **({"workers": found.workers} if found.workers != 1 else {}),
        **({"rows": "mayDrop"} if found.may_drop else {}),
        **({"parameters": dict(found.parameters)} if found.parameters else {}),
        **(
            {"memory": format_bytes(found.memory_bytes)}
            if found.memory_bytes != TRANSFORM_MEMORY_BYTES
            else {}
        ),
    }
    return {"transform": {"function": found.function, **more} if more else found.function}


def _function(section: Section, key: str) -> str:
    text = section.text(key)
    if text and not _FUNCTION.fullmatch(text):
        section.wrong(key, FORM)
    return text


def _parameters(section: Section) -> Mapping[str, str]:
    value = section.raw("parameters")
    if not section.has("parameters"):
        return {}
    if not is_mapping(value):
        section.wrong("parameters", "a mapping of texts, as {vocabulary: words.txt}")
        return {}
    found: dict[str, str] = {}
    for name, one in value.items():
        at = (*section.at("parameters"), name)
        if not isinstance(one, str):
            section.findings.add(at, found=show_value(one), allowed="a text")
        elif check_text(section.findings, at, one):
            found[name] = one
    return found


def _memory(section: Section) -> int:
    found = section.byte_count("memory", TRANSFORM_MEMORY_BYTES)
    if not MEMORY_MIN <= found <= MEMORY_MAX:
        section.wrong("memory", f"{format_bytes(MEMORY_MIN)} to {format_bytes(MEMORY_MAX)}")
    return found
