"""What primusctl prints: tables on a terminal, tabs in a pipe, JSON and YAML as they came."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

TABLE_FORMS = ("table", "wide")
FORMS = ("table", "wide", "json", "yaml", "spec", "name", "jsonl")
GAP = "  "
_COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "grey": "90", "bold": "1"}
_PHASE_COLORS = {
    "Succeeded": "green",
    "Running": "green",
    "Ready": "green",
    "Failed": "red",
    "Away": "red",
    "Cancelled": "yellow",
    "Stopping": "yellow",
    "Excluded": "yellow",
    "Cordoned": "yellow",
}


class Printer:
    """Writes to standard output in one of the forms."""

    def __init__(self, form: str, *, no_color: bool, now_s: float) -> None:
        self.form = form
        self.is_terminal = sys.stdout.isatty()
        self.has_color = self.is_terminal and not no_color and "NO_COLOR" not in os.environ
        self._now_s = now_s

    def as_of(self, at: object) -> "Printer":
        """Return a printer for which it is the time of a document: ages count from there."""
        now_s = self._now_s
        if isinstance(at, str) and at:
            now_s = datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
        return Printer(self.form, no_color=not self.has_color, now_s=now_s)

    @property
    def is_wide(self) -> bool:
        """Whether tables have all their columns."""
        return self.form == "wide"

    def line(self, text: str = "") -> None:
        """Write a line."""
        sys.stdout.write(f"{text}\n")

    def document(self, document: object) -> None:
        """Write one document as JSON or YAML."""
        if self.form == "yaml":
            from primusd.jobfile.yamlwriting import write_yaml  # noqa: PLC0415 - costs 60 ms

            sys.stdout.write(write_yaml(document))
        else:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def json_line(self, document: object) -> None:
        """Write one document on one line."""
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write aligned columns on a terminal, and tab-separated ones in a pipe."""
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.is_terminal:
            for row in [list(header), *cells]:
                self.line("\t".join(row))
            return
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        self.line(self.paint("bold", _aligned(header, widths)))
        for row in cells:
            self.line(self._painted_row(row, widths))

    def _painted_row(self, row: Sequence[str], widths: Sequence[int]) -> str:
        line = _aligned(row, widths)
        phase = next((cell for cell in row if cell in _PHASE_COLORS), "")
        if not phase or not self.has_color:
            return line
        return line.replace(phase, self.paint(_PHASE_COLORS[phase], phase), 1)

    def paint(self, color: str, text: str) -> str:
        """Return the text in a colour where there are any."""
        return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if self.has_color else text

    def age(self, at: object) -> str:
        """Return how long ago a time of a document was: `5m`; "" for none."""
        if not isinstance(at, str) or not at:
            return ""
        then = datetime.fromisoformat(at.replace("Z", "+00:00"))
        return short_duration(int(self._now_s - then.timestamp()))


def printable(cell: object) -> str:
    """Return a cell as one line without control characters: names are others' input."""
    text = "" if cell is None else str(cell)
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def short_duration(seconds: float) -> str:
    """Return a duration in its largest unit, or two of them while it is short: `2m5s`, `3h`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def short_bytes(byte_count: object) -> str:
    """Return a size in binary units: `1.5Gi`."""
    amount = float(byte_count) if isinstance(byte_count, int | float) else 0.0
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if amount < 1024:
            return f"{amount:.0f}{unit}" if unit == "" else f"{amount:.1f}{unit}"
        amount /= 1024
    return f"{amount:.1f}Pi"


def grouped(count: object) -> str:
    """Return a count with its thousands apart."""
    return f"{count:,}" if isinstance(count, int) else ""


def local_time(at: object) -> str:
    """Return a time of a document as UTC to the second, as people read it in a line of events."""
    if not isinstance(at, str):
        return ""
    then = datetime.fromisoformat(at.replace("Z", "+00:00")).astimezone(UTC)
    return f"{then:%Y-%m-%d %H:%M:%S}Z"
