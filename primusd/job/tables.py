"""Cells of transition tables: one notation for all machines, as docs/state-machines.md has it.

A cell is written as on the page: a phase's name, `=`, `· x`, `!`, or a choice such as
`= or Done`. What decides a choice stands in the machine's module.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.machine import IGNORE_REASONS


class Table(Struct, frozen=True):
    """A transition table: rows of cells by event name, columns by phase name."""

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    cells: Mapping[tuple[str, str], str]
    """By event and phase."""

    def cell(self, event: str, phase: str) -> str:
        """Return the cell of an event in a phase."""
        return self.cells[event, phase]


def parse_table(text: str) -> Table:
    """Return the table of an aligned text: header of phases, then `Event | cell | cell`.

    Raises:
        ValueError: A row has another number of cells than the header.
    """
    lines = [line for line in text.strip().splitlines() if line.strip()]
    columns = tuple(part.strip() for part in lines[0].split("|")[1:])
    rows: dict[str, tuple[str, ...]] = {}
    for line in lines[1:]:
        name, *cells = (part.strip() for part in line.split("|"))
        if len(cells) != len(columns) or name in rows:
            raise ValueError(f"bad table row: {line}")
        rows[name] = tuple(cells)
    by_place = {
        (name, column): cell
        for name, row in rows.items()
        for column, cell in zip(columns, row, strict=True)
    }
    return Table(columns, rows, by_place)


def ignored_reason(cell: str) -> str | None:
    """Return why a cell is ignored, None when it is not."""
    return IGNORE_REASONS[cell[1:].strip()] if cell.startswith("·") else None


def is_refused(cell: str) -> bool:
    """Return whether a cell is refused."""
    return cell == "!"
