"""From bytes or a decoded document to a job's spec, with the origin of each of its values."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from primusd.compat.converting import Converted, convert
from primusd.compat.original import is_original
from primusd.errors import MalformedError, NotYetError, Problem, SpecError
from primusd.job.spec import JobSpec
from primusd.jobfile.checking import JOB_FIELDS, ParseContext, merge_defaults, read_job
from primusd.jobfile.document import (
    Document,
    Path,
    Place,
    assemble,
    leaves,
    node_of,
    printable,
    show_path,
    show_value,
)
from primusd.jobfile.notyet import note_not_yet
from primusd.jobfile.reading import Variables, read_document
from primusd.jobfile.rendering import render
from primusd.jobfile.section import Findings, is_mapping
from primusd.jobfile.setting import Assignment, assign, read_sets

DEFAULT = "default"
FILE = "file"
SET = "--set"
DEFAULTS = "defaults"
CONVERTED = "converted"
CLIENT = "client"
NO_CONTEXT = ParseContext()
# A hostile file must not make an answer larger than itself.
ERRORS_MAX = 100
ORIGINS = frozenset((DEFAULT, FILE, SET, DEFAULTS, CONVERTED, CLIENT))


class Parsed(Struct, frozen=True):
    """A job file that is right."""

    spec: JobSpec
    origins: Mapping[str, str]
    """By path of `render(spec)`: `default`, `file`, `--set`, `defaults`, `converted` (from an
    original file) or `client` (a name given beside the file)."""
    warnings: tuple[str, ...] = ()
    """Each begins with a path: fields without effect, names that were mapped."""


def parse(
    data: bytes,
    *,
    filename: str = "job.yaml",
    sets: Sequence[str] = (),
    context: ParseContext = NO_CONTEXT,
) -> Parsed:
    """Return what a job file asks for: ours, an original one, or a Job document of the API.

    Args:
        data: The whole file, YAML 1.2, JSON or TOML.
        filename: For messages, and to tell the spelling.
        sets: `path.to.field=value` in place of the file's, or `VAR=text` for its `${VAR}`.
        context: What the file is read against.

    Raises:
        MalformedError: It cannot be read at all.
        TooLargeError: Over 4 MiB, or far more values than a job file has.
        SpecError: It is wrong; `errors` has everything at once.
        NotYetError: It asks only for what this build does not carry out.
    """
    assignments, values = read_sets(sets)
    variables = Variables(values)
    document = read_document(data, filename=printable(filename), variables=variables)
    unused = sorted(set(values) - variables.used)
    return _parsed(document, assignments, context, unused)


def parse_document(
    document: object,
    *,
    filename: str = "",
    sets: Sequence[str] = (),
    context: ParseContext = NO_CONTEXT,
) -> Parsed:
    """Return what a decoded document asks for; see `parse`."""
    assignments, values = read_sets(sets)
    read = assemble(node_of(document), printable(filename) or "job")
    return _parsed(read, assignments, context, sorted(values))


def _parsed(
    document: Document,
    assignments: tuple[Assignment, ...],
    context: ParseContext,
    unused: Sequence[str],
) -> Parsed:
    document, given = _unwrapped(document)
    if not is_mapping(document.root):
        raise MalformedError(
            f"{document.filename} is no job file: it holds {show_value(document.root)}, "
            "not a mapping of fields, as name: hello"
        )
    faults = [*document.faults, *_unused(unused)]
    written = document
    converted: Converted | None = None
    if is_original(document.root):
        late = tuple(one for one in assignments if one.path[0] in JOB_FIELDS)
        early = tuple(one for one in assignments if one not in late)
        written = assign(document, early)
        converted = convert(written.root)
        faults += _problems(written, converted)
        document = assign(_converted(written, converted), late)
    else:
        document = assign(document, assignments)
    findings = Findings(document)
    root = merge_defaults(findings, document.root)
    spec = read_job(findings, root, context)
    is_wrong = bool(findings.problems or faults)
    refused = note_not_yet(findings, root)
    refused_here = _refused(written, converted)
    if is_wrong or refused or refused_here:
        problems = (*faults, *findings.problems, *refused_here)
        raise _error(document.filename, problems, only_not_yet=not is_wrong)
    notes = converted.notes if converted else ()
    return Parsed(
        spec,
        given or _origins(document, findings, spec, context, is_converted=converted is not None),
        (
            *(f"{show_path(note.path)}: {printable(note.text)}" for note in notes),
            *findings.warnings,
        ),
    )


def _unwrapped(document: Document) -> tuple[Document, Mapping[str, str] | None]:
    """Return the spec of a Job document as if it were the file, and the origins it came with."""
    root = document.root
    if not is_mapping(root) or root.get("kind") != "Job" or not is_mapping(root.get("spec")):
        return document, None
    places = {path[1:]: place for path, place in document.places.items() if path[:1] == ("spec",)}
    inner = msgspec.structs.replace(
        document,
        root=root["spec"],
        places=places,
        faults=tuple(one for one in document.faults if one.path.startswith("spec.")),
    )
    origins = root.get("origins")
    if not is_mapping(origins):
        return inner, None
    known = {path: word for path, word in origins.items() if isinstance(word, str)}
    return inner, known if set(known.values()) <= ORIGINS else None


def _converted(document: Document, converted: Converted) -> Document:
    """Return the converted file as a document that still names the places of the one given."""
    places: dict[Path, Place] = {}
    for path, source in converted.sources.items():
        above = (source[:length] for length in range(len(source), -1, -1))
        known = next((one for one in above if one in document.places), None)
        if known is not None:
            places[path] = document.places[known]
    return Document(
        converted.document,
        document.filename,
        places,
        shown=converted.sources,
    )


def _problems(document: Document, converted: Converted) -> list[Problem]:
    return [
        Problem(
            show_path(wrong.path),
            at=document.at(wrong.path),
            found=printable(wrong.found),
            allowed=wrong.allowed,
            hint=wrong.hint,
        )
        for wrong in converted.wrong
    ]


def _refused(document: Document, converted: Converted | None) -> tuple[Problem, ...]:
    """Return what an original file asks for, has no place in ours, and is not carried out."""
    return tuple(
        Problem(show_path(note.path), at=document.at(note.path), hint=note.text)
        for note in (converted.refused if converted else ())
    )


def _unused(names: Sequence[str]) -> list[Problem]:
    return [
        Problem(
            "",
            at=f"--set {name}",
            found=name,
            hint=f"there is no ${{{name}}} in the file; a field is set by its path, "
            "as roles.worker.replicas=4",
        )
        for name in names
    ]


def _error(filename: str, problems: tuple[Problem, ...], *, only_not_yet: bool) -> SpecError:
    """Return the error that tells all problems; a single one is told in its message."""
    if len(problems) == 1:
        message = problems[0].sentence()
    else:
        message = f"{filename} has {len(problems)} errors: {problems[0].sentence()}; …"
    kind = NotYetError if only_not_yet else SpecError
    return kind(message, errors=problems[:ERRORS_MAX])


def _origins(
    document: Document,
    findings: Findings,
    spec: JobSpec,
    context: ParseContext,
    *,
    is_converted: bool,
) -> Mapping[str, str]:
    """Return where each value of the effective spec came from."""
    written = _written(document, is_converted=is_converted)
    origins: dict[str, str] = {}
    for path, _ in leaves(render(spec)):
        source = findings.written(path)
        # A short form stands for all that it was spelled out to.
        known = (written.get(source[:length]) for length in range(len(source), 0, -1))
        origins[show_path(path)] = next((origin for origin in known if origin), DEFAULT)
    if context.name:
        origins["name"] = CLIENT
    if origins["namespace"] == DEFAULT and context.namespace != NO_CONTEXT.namespace:
        origins["namespace"] = CLIENT
    return origins


def _written(document: Document, *, is_converted: bool) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for path, value in leaves(document.root):
        if value in ({}, []):
            continue
        place = document.places.get(path)
        if place is not None and place.label:
            found[path] = SET
        elif path[:1] == ("defaults",):
            found[path] = DEFAULTS
        else:
            found[path] = CONVERTED if is_converted else FILE
    return found
