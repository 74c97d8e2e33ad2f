"""An original job file rewritten as one of ours, also where this build refuses part of it."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.compat.converting import convert
from primusd.compat.original import is_original
from primusd.errors import Problem, SpecError
from primusd.jobfile.document import printable, show_path
from primusd.jobfile.reading import read_document


class Conversion(Struct, frozen=True):
    """An original job file in our form."""

    document: Mapping[str, object]
    """Without defaults, paths as they were; `write_yaml` makes a job file of it."""
    notes: tuple[str, ...]
    """Each begins with a path of the original: no effect, mapped, or not carried out yet."""


def convert_file(data: bytes, *, filename: str) -> Conversion | None:
    """Return an original job file in our form; None when it is no original one.

    Raises:
        MalformedError: It cannot be read at all.
        TooLargeError: Over 4 MiB, or far more values than a job file has.
        SpecError: Fields of it cannot be read; every one of them at once.
    """
    document = read_document(data, filename=printable(filename))
    if not is_original(document.root):
        return None
    converted = convert(document.root)
    wrong = tuple(
        Problem(
            show_path(one.path),
            at=document.at(one.path),
            found=printable(one.found),
            allowed=one.allowed,
            hint=one.hint,
        )
        for one in converted.wrong
    )
    problems = (*document.faults, *wrong)
    if problems:
        raise SpecError(problems[0].sentence(), errors=problems)
    said = [(note.path, note.text) for note in converted.notes]
    said += [(note.path, f"is left out: {note.text}") for note in converted.refused]
    return Conversion(
        converted.document, tuple(f"{show_path(path)}: {printable(text)}" for path, text in said)
    )
