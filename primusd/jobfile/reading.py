"""Bytes into a document: which spelling it is, and what no spelling may be."""

import re
from collections.abc import Callable, Mapping

from primusd.errors import MalformedError, TooLargeError
from primusd.jobfile.document import FILE_BYTES_MAX, Document, Node, assemble
from primusd.jobfile.jsontext import read_json
from primusd.jobfile.yamltext import read_yaml

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


class Variables:
    """Fills in `${VAR}` from `--set`, and remembers which were used.

    A variable without a value stays as it is written: a shell line may mean its own.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.used: set[str] = set()

    def substitute(self, text: str) -> str:
        """Return the text with every known variable replaced."""
        return _VARIABLE.sub(self._replace, text) if self.values and "${" in text else text

    def _replace(self, match: re.Match[str]) -> str:
        value = self.values.get(match[1])
        if value is None:
            return match[0]
        self.used.add(match[1])
        return value


def unset_variable(text: str) -> str:
    """Return the name of the first `${VAR}` in a text, "" when there is none."""
    match = _VARIABLE.search(text)
    return match[1] if match else ""


def read_document(data: bytes, *, filename: str, variables: Variables | None = None) -> Document:
    """Return the document that a file holds.

    Args:
        data: The whole file: YAML 1.2, JSON, or TOML where the name ends so.
        filename: For messages, and to tell the spelling.
        variables: Values for `${VAR}`; None has none.

    Raises:
        MalformedError: Empty, binary, not well-formed, or nested too deeply.
        TooLargeError: Over 4 MiB, or more values than a job file can need.
    """
    text = _text(data, filename)
    substitute = (variables or Variables({})).substitute
    node = _reader(text, filename)(text, filename, substitute)
    return assemble(node, filename)


def _text(data: bytes, filename: str) -> str:
    """Return the text of a file, or say in one sentence why it cannot be a job file."""
    if len(data) > FILE_BYTES_MAX:
        raise TooLargeError(
            f"{filename} has {len(data) / (1 << 20):.1f} MiB, a job file at most "
            f"{FILE_BYTES_MAX >> 20} MiB"
        )
    if b"\0" in data:
        raise MalformedError(f"{filename} is binary, not a job file in YAML, JSON or TOML")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(
            f"{filename}:{line} is not UTF-8 text: byte 0x{data[error.start]:02x}"
        ) from error
    if not text.strip():
        raise MalformedError(f"{filename} is empty")
    return text


def _reader(text: str, filename: str) -> Callable[[str, str, Callable[[str], str]], Node]:
    """Return what reads the spelling: by the name's ending, else by how the text begins."""
    name = filename.lower()
    if name.endswith(".toml"):
        from primusd.jobfile.tomltext import read_toml  # noqa: PLC0415 - few files are TOML

        return read_toml
    if name.endswith(".json") or (
        not name.endswith((".yaml", ".yml")) and text.lstrip().startswith("{")
    ):
        return read_json
    return read_yaml
