"""Opens units: finds out their format, picks what reads it, and gives rows their shape."""

from typing import TYPE_CHECKING

from primusd.datafeed.formats.base import (
    OpenFile,
    ReadError,
    RowFile,
    UnitFile,
    head_of,
    open_pinned,
)
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.lean import load_lean
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.formats.text import PlainLines
from primusd.datafeed.protocol import Unit
from primusd.job.formats import FORMATS, LINE_FORMATS, PACKABLE, Told, told_by_head, told_by_name

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    from primusd.datafeed.formats.schemas import SchemaKeeper
    from primusd.datafeed.formats.user_process import UserProcesses

TOLD_BYTES = 12
PLAIN = Told("text", "none")


class Opener:
    """Opens the units of one stream; its rows have the columns of the first one, or as settled.

    Attributes:
        settings: Of the stream.
    """

    def __init__(
        self, settings: Settings, *, is_lean: bool = False, budget: Budget | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            settings: Of the stream.
            is_lean: Let pyarrow keep little of what was freed, in all of this process.
            budget: Of what reads it; None: nobody else uses the stream's memory.
        """
        self.settings = settings
        self._budget = budget or Budget(settings.memory_bytes)
        self._is_lean = is_lean
        self._keeper: SchemaKeeper | None = None
        self._workers: UserProcesses | None = None

    def open(self, unit: Unit) -> UnitFile:
        """Return the opened unit.

        Raises:
            ReadError: It cannot be opened, is not of its format, or has no row where that is
                a fault.
        """
        if unit.kind == "kafka":
            from primusd.datafeed.formats.values import open_partition  # noqa: PLC0415

            return self._shaped(open_partition(unit, self.settings), unit)
        file = open_pinned(unit, ahead_bytes=self._budget.ahead_bytes)
        self._budget.opened(file)
        told = told_form(unit, file, self.settings)
        if told == PLAIN and not self.settings.is_reshaped:
            return PlainLines(
                unit,
                file,
                line_bytes_max=self.settings.record_bytes_max,
                shaped=lambda: self._shaped(self._opened(unit, file, told), unit),
            )
        from primusd.datafeed.formats.shaping import no_name  # noqa: PLC0415 starts threads

        try:
            opened = self._opened(unit, file, told)
        except UnicodeDecodeError as error:
            raise no_name(unit, error) from error
        if opened.end == 0 and self.settings.on_empty == "fail":
            raise ReadError(
                f"{unit.location} has no row; onEmpty: skip passes over such files",
                kind="data",
                lo=0,
                hi=1,
                head=head_of(file),
            )
        return self._shaped(opened, unit)

    def _shaped(self, inner: RowFile, unit: Unit) -> UnitFile:
        # Imported here: pyarrow starts threads, and the image that executors are forked from
        # has none.
        from primusd.datafeed.formats.schemas import SchemaKeeper  # noqa: PLC0415
        from primusd.datafeed.formats.shaping import Shaped  # noqa: PLC0415

        self._load()
        if self._keeper is None:
            self._keeper = SchemaKeeper(self.settings)
        return Shaped(inner, unit, self.settings, self._keeper)

    def _load(self) -> None:
        """Load pyarrow as this process wants it, once."""
        if self._is_lean:
            load_lean(self.settings.memory_bytes)
            self._is_lean = False

    def close(self) -> None:
        """End what reads for it in other processes; whoever waits for them is told the end."""
        if self._workers is not None:
            self._workers.close()

    def _class_workers(self) -> "UserProcesses":
        # Imported here: it loads pyarrow, which starts threads.
        from primusd.datafeed.formats.customized import class_processes  # noqa: PLC0415

        if self._workers is None:
            self._workers = class_processes(self.settings.place)
        return self._workers

    def _opened(self, unit: Unit, file: OpenFile, told: Told) -> RowFile:
        self._load()
        match told.format:
            case "parquet":
                from primusd.datafeed.formats.parquet import ParquetUnit  # noqa: PLC0415

                return ParquetUnit(unit, file, self.settings, self._budget)
            case "arrow":
                from primusd.datafeed.formats.ipc import IpcUnit  # noqa: PLC0415

                return IpcUnit(unit, file, self.settings, self._budget)
            case "class":
                from primusd.datafeed.formats.customized import ClassUnit  # noqa: PLC0415

                return ClassUnit(unit, told.compression, self._class_workers(), self.settings)
            case _:
                return _records(unit, file, told, self.settings, self._budget)


def told_form(unit: Unit, file: OpenFile, settings: Settings) -> Told:
    """Return the format of a unit and how it is compressed: as said, by its name, or by its head.

    Raises:
        ReadError: Nothing tells its format, or its first bytes tell another one.
    """
    by_name = told_by_name(unit.location)
    form = settings.format or unit.options.get("format", "") or by_name.format
    packed = settings.options.get("compression", "") or unit.options.get("compression", "")
    head = file.pread(0, TOLD_BYTES)
    by_head = told_by_head(head)
    form = form or by_head.format
    if not form:
        raise ReadError(
            f"neither the name of {unit.location} nor its first bytes, {head!r}, tell a format; "
            f"set format: {', '.join(FORMATS)}",
            kind="data",
            head=head_of(file),
        )
    if form not in PACKABLE:
        return Told(form, "none")
    if not packed and "format" not in unit.options:
        packed = by_name.compression or by_head.compression
    packed = packed or "none"
    is_said = "compression" in settings.options or "compression" in unit.options
    if packed not in ("none", by_head.compression):
        raise ReadError(
            f"{unit.location} is not compressed as {packed}: it begins with {head!r}; "
            f"format: {{name: {form}, compression: none}} reads it as it is",
            kind="data",
            head=head_of(file),
        )
    if packed == "none" and by_head.compression and form in LINE_FORMATS and not is_said:
        found = by_head.compression
        raise ReadError(
            f"{unit.location} begins as a file that {found} compressed, {head!r}, which its name "
            f"does not tell; say format: {{name: {form}, compression: {found}}}, or none",
            kind="data",
            head=head_of(file),
        )
    return Told(form, packed)


def _records(unit: Unit, file: OpenFile, told: Told, settings: Settings, budget: Budget) -> RowFile:
    from primusd.datafeed.formats.forms import form_of  # noqa: PLC0415

    form = form_of(told.format, settings, unit.location)
    if told.compression != "none":
        from primusd.datafeed.formats.packed import PackedFile  # noqa: PLC0415

        return PackedFile(unit, file, form, settings, told.compression, budget=budget)
    from primusd.datafeed.formats.records import RecordFile  # noqa: PLC0415

    return RecordFile(unit, file, form, settings, budget)
