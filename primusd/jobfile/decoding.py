"""What a stream says of the form of its files: format and its options, columns, types, filter."""

import json
import posixpath
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from primusd.job.conditions import FORM, ConditionError, parse_condition
from primusd.job.decoding import MEMORY_BYTES, Decoding
from primusd.job.formats import (
    COLUMN_FORMATS,
    COMPRESSIONS,
    FORMATS,
    LINE_FORMATS,
    PACKABLE,
    PREFIXES,
    has_bytes,
    told_by_name,
)
from primusd.job.spec import Source, StreamSpec
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.section import Findings, Section, check_text, is_list, is_mapping
from primusd.units import format_bytes

ONLY_COLUMNS = {"text": "line", "records": "record", "protobuf": "record", "tfrecord": "record"}
"""Of formats whose rows are bytes; `raw` has chunks, which no condition is about."""
DECODING_FIELDS = ("format", "columns", "types", "filter", "onSchema", "onEmpty", "memory")
MEMORY_MIN = 8 << 20
MEMORY_MAX = 64 << 30
CHUNK_MIN, CHUNK_MAX = 1 << 10, 16 << 20
RECORD_MAX = 1 << 30
FIELDS_MAX = 16
FILTER_MAX = 64
_TYPE = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|string|binary|date(32|64)"
    r"|(timestamp|duration)\[(s|ms|us|ns)\]|time32\[(s|ms)\]|time64\[(us|ns)\]"
)
TYPE_FORM = "an Arrow type, as int8, uint64, float64, string, binary, date32, timestamp[ms]"
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


class _Read(Struct, frozen=True):
    """What was read: the name of the format, and its options as texts."""

    name: str
    options: Mapping[str, str] = {}


def read_decoding(section: Section, sources: tuple[Source, ...], *, base_dir: str) -> StreamSpec:
    """Return a stream with nothing but its sources, its format and how rows are decoded.

    Args:
        section: The stream's.
        sources: As they were read; their names may tell the format.
        base_dir: Relative paths are made absolute below it; "" refuses them.
    """
    form = _format(section, sources, base_dir)
    decoding = Decoding(
        options=form.options,
        types=_types(section),
        filter=_filter(section),
        on_schema=_on_schema(section),
        on_empty=section.choice("onEmpty", ("skip", "fail"), "skip"),
        memory_bytes=_memory(section),
    )
    columns = section.texts("columns")
    _check_columns(section, form)
    if decoding.on_schema != "fail" and form.name in COLUMN_FORMATS and not columns:
        section.findings.warn(
            section.at("onSchema"),
            "without columns each reader takes those of the first file that it reads; say columns",
        )
    return StreamSpec("", sources, format=form.name, columns=columns, decoding=decoding)


def render_decoding(stream: StreamSpec) -> dict[str, object]:
    """Return the keys of a stream that `read_decoding` reads."""
    decoding = stream.decoding
    options = {key: _rendered(key, text) for key, text in decoding.options.items()}
    form: object = {"name": stream.format, **options} if options else stream.format
    return {
        **({"format": form} if stream.format else {}),
        **({"columns": list(stream.columns)} if stream.columns else {}),
        **({"types": dict(decoding.types)} if decoding.types else {}),
        **({"filter": list(decoding.filter)} if decoding.filter else {}),
        **({"onSchema": decoding.on_schema} if decoding.on_schema != "fail" else {}),
        **({"onEmpty": decoding.on_empty} if decoding.on_empty != "skip" else {}),
        **(
            {"memory": format_bytes(size)}
            if (size := decoding.memory_bytes) != MEMORY_BYTES
            else {}
        ),
    }


def is_cut_by_bytes(stream: StreamSpec) -> bool:
    """Return whether the positions of a stream's files are bytes, as far as its format tells."""
    packed = {told_by_name(source.files).compression for source in stream.sources if source.files}
    options = {"format": stream.format, "compression": "".join(packed), **stream.decoding.options}
    return has_bytes(options)


def check_framing(findings: Findings, path: Path, stream: StreamSpec, framing: str) -> None:
    """Note a framing of standard input that a stream's format has no form for."""
    form = stream.format
    if framing == "raw" and (form in ("parquet", "arrow", "class") or _is_reshaped(stream)):
        how = "one by one" if form in ONLY_COLUMNS else "as one JSON object each"
        findings.add(
            path,
            found=framing,
            allowed="lines",
            hint=f"rows of {stream.name} ({form}) go to stdin {how}",
        )
    if framing != "raw" and form == "raw":
        findings.add(
            path, found=framing, allowed="raw", hint=f"{stream.name} is raw: it has no records"
        )


def _is_reshaped(stream: StreamSpec) -> bool:
    """Return whether rows are no longer as they stand in their file."""
    decoding = stream.decoding
    return bool(stream.columns or decoding.filter or decoding.types or stream.transform)


def has_columns(form: str, options: Mapping[str, str]) -> bool:
    """Return whether rows of a format have columns of their own."""
    return form in COLUMN_FORMATS or "message" in options or "fields" in options


def _format(section: Section, sources: tuple[Source, ...], base_dir: str) -> _Read:
    """Return the format that was said, else the one that all file names tell; "" told later."""
    value = section.raw("format")
    if is_mapping(value):
        return _with_options(section, value, base_dir)
    if section.has("format"):
        return _completed(section, _Read(section.choice("format", FORMATS, "text")))
    told = {told_by_name(source.files).format for source in sources if source.files}
    if len(told) > 1 and "" not in told:
        section.findings.add(
            section.path, hint="its sources differ in format; put them into two streams"
        )
    # What the pattern does not tell is told by each file, once it is listed.
    return _Read(told.pop() if len(told) == 1 else "")


def _with_options(section: Section, value: object, base_dir: str) -> _Read:
    options = Section(section.findings, section.at("format"), value, ("name", *_READERS))
    name = options.choice("name", FORMATS, "text")
    known = ("name", *_options_of(name))
    if not options.has("name"):
        section.wrong("format", "a mapping with a name", f"name is one of {', '.join(FORMATS)}")
        return _Read("")
    found: dict[str, str] = {}
    for key, read in _READERS.items():
        if not options.has(key):
            continue
        if key not in known:
            options.wrong(key, f"options of {name}: {', '.join(known[1:]) or 'none'}")
        elif text := read(options, key, base_dir):
            found[key] = text
    return _completed(section, _Read(name, found))


def _completed(section: Section, form: _Read) -> _Read:
    """Note options that are missing or exclude each other."""
    at, options = section.at("format"), form.options
    add = section.findings.add
    match form.name:
        case "records" if ("size" in options) == ("prefix" in options):
            add(
                at,
                found=show_value(section.raw("format")),
                allowed="{name: records, size: 128} or {name: records, prefix: u32le}",
                hint="records have one size, or the length of each stands before it",
            )
        case "class" if "class" not in options:
            add(
                at,
                found=show_value(section.raw("format")),
                allowed='{name: class, class: "module:Class"}',
            )
        case _:
            pass
    if ("message" in options) != ("descriptors" in options):
        add(at, hint="message and descriptors belong together: the type, and the file it is in")
    if "fields" in options and ("prefix" not in options or "message" in options):
        add(at, hint="fields are names for parts of a record that have a length (prefix) each")
    return form


def _options_of(name: str) -> tuple[str, ...]:
    own: dict[str, tuple[str, ...]] = {
        "raw": ("chunk",),
        "records": ("size", "prefix", "fields", "descriptors", "message"),
        "protobuf": ("prefix", "descriptors", "message"),
        "tfrecord": ("verify", "descriptors", "message"),
        "csv": ("delimiter", "quote", "header", "multiline"),
        "class": ("class", "parameters"),
    }
    return (*own.get(name, ()), *(("compression",) if name in PACKABLE else ()))


def _character(options: Section, key: str, _: str) -> str:
    text = options.text(key)
    if text and (len(text.encode()) != 1 or text in "\r\n"):
        options.wrong(key, "one character of ASCII, no line end", r'a tab is "\t"')
    return text


def _path(options: Section, key: str, base_dir: str) -> str:
    text = options.text(key)
    if text and not text.startswith("/"):
        if not base_dir:
            options.wrong(key, "an absolute path")
        return posixpath.normpath(posixpath.join(base_dir, text))
    return text


def _class(options: Section, key: str, _: str) -> str:
    text = options.text(key)
    if text and not _CLASS.fullmatch(text):
        options.wrong(key, "module:Class, as clicks.source:Pairs")
    return text


def _fields(options: Section, key: str, _: str) -> str:
    names = options.texts(key)
    if len(names) > FIELDS_MAX or any("," in name for name in names):
        options.wrong(key, f"1 to {FIELDS_MAX} names without a comma")
    return ",".join(names)


def _parameters(options: Section, key: str, _: str) -> str:
    value = options.raw(key)
    if not is_mapping(value):
        options.wrong(key, "a mapping of texts, as {prefix: KP}")
        return ""
    found: dict[str, str] = {}
    for name, one in value.items():
        at = (*options.at(key), name)
        if not isinstance(one, str):
            options.findings.add(at, found=show_value(one), allowed="a text")
        elif check_text(options.findings, at, one):
            found[name] = one
    return json.dumps(found, ensure_ascii=False)


_READERS: Mapping[str, Callable[[Section, str, str], str]] = {
    "compression": lambda one, key, _: one.choice(key, ("none", *COMPRESSIONS), ""),
    "chunk": lambda one, key, _: _size(one, key, CHUNK_MIN, CHUNK_MAX),
    "size": lambda one, key, _: str(one.count(key, 1, low=1, high=RECORD_MAX)),
    "prefix": lambda one, key, _: one.choice(key, PREFIXES, ""),
    "fields": _fields,
    "descriptors": _path,
    "message": lambda one, key, _: one.text(key),
    "verify": lambda one, key, _: one.choice(key, ("full", "header", "none"), ""),
    "delimiter": _character,
    "quote": _character,
    "header": lambda one, key, _: "true" if one.flag(key, default=True) else "false",
    "multiline": lambda one, key, _: "true" if one.flag(key, default=False) else "false",
    "class": _class,
    "parameters": _parameters,
}


def _rendered(key: str, text: str) -> object:
    match key:
        case "header" | "multiline":
            return text == "true"
        case "size":
            return int(text)
        case "chunk":
            return format_bytes(int(text))
        case "fields":
            return text.split(",")
        case "parameters":
            return json.loads(text)
        case _:
            return text


def _size(section: Section, key: str, low: int, high: int) -> str:
    found = section.byte_count(key, low)
    if not low <= found <= high:
        section.wrong(key, f"{format_bytes(low)} to {format_bytes(high)}")
    return str(found)


def _memory(section: Section) -> int:
    if not section.has("memory"):
        return MEMORY_BYTES
    found = section.byte_count("memory", MEMORY_BYTES)
    if not MEMORY_MIN <= found <= MEMORY_MAX:
        section.wrong("memory", f"{format_bytes(MEMORY_MIN)} to {format_bytes(MEMORY_MAX)}")
    return found


def _on_schema(section: Section) -> str:
    # YAML has the word null for nothing, and it is what its writer means.
    if section.has("onSchema") and section.raw("onSchema") is None:
        return "null"
    return section.choice("onSchema", ("fail", "null", "skip"), "fail")


def _types(section: Section) -> Mapping[str, str]:
    value = section.raw("types")
    if not section.has("types"):
        return {}
    if not is_mapping(value):
        section.wrong("types", "a mapping, as {label: int8, user: string}")
        return {}
    found: dict[str, str] = {}
    for name, one in value.items():
        if isinstance(one, str) and _TYPE.fullmatch(one):
            found[name] = one
        else:
            path = (*section.at("types"), name)
            section.findings.add(path, found=show_value(one), allowed=TYPE_FORM)
    return found


def _filter(section: Section) -> tuple[str, ...]:
    value = section.raw("filter")
    if not section.has("filter"):
        return ()
    texts = value if is_list(value) else [value]
    if not texts or len(texts) > FILTER_MAX:
        section.wrong("filter", f"1 to {FILTER_MAX} conditions, as [label == 1]")
        return ()
    found: list[str] = []
    for index, one in enumerate(texts):
        path = (*section.at("filter"), index) if is_list(value) else section.at("filter")
        if _is_condition(section.findings, path, one):
            found.append(str(one))
    return tuple(found)


def _is_condition(findings: Findings, path: Path, value: object) -> bool:
    if not isinstance(value, str):
        findings.add(path, found=show_value(value), allowed="a condition", hint=FORM)
        return False
    if not check_text(findings, path, value):
        return False
    try:
        parse_condition(value)
    except ConditionError as error:
        findings.add(path, found=show_value(value), allowed="a condition", hint=error.message)
        return False
    return True


def _check_columns(section: Section, form: _Read) -> None:
    """Note what asks for columns where records have none."""
    if not form.name or has_columns(form.name, form.options):
        return
    name = "lines" if form.name in LINE_FORMATS else "records"
    only = ONLY_COLUMNS.get(form.name, "")
    for key in ("columns", "types", "filter", "onSchema"):
        if not section.has(key) or section.raw(key) in ([], {}):
            continue
        if key == "filter" and only:
            _check_filter_of(section, form.name, only)
        else:
            section.wrong(key, f"formats with columns; {form.name} gives {name} as they are")


def _check_filter_of(section: Section, form: str, only: str) -> None:
    """Note conditions on what rows of one column of bytes have not."""
    others = {
        condition.column
        for condition in map(parse_condition, _filter_texts(section))
        if condition.column != only
    }
    if others:
        section.wrong("filter", f"conditions on {only}, the only column of {form}")


def _filter_texts(section: Section) -> tuple[str, ...]:
    value = section.raw("filter")
    texts = value if is_list(value) else [value]
    return tuple(one for one in texts if isinstance(one, str) and _can_be_read(one))


def _can_be_read(text: str) -> bool:
    try:
        parse_condition(text)
    except ConditionError:
        return False
    return True


OPTION_NAMES = tuple(_READERS)
"""All that a format may say beside its name."""
