"""Whole records into rows: as they are, as CSV or as JSON, a batch at a time."""

import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from primusd.datafeed.formats.framings import NEWLINE, Cut
from primusd.datafeed.formats.nested import AnyArray, AnyField, outer_names
from primusd.errors import PrimusdError

HEAD_BYTES = 1 << 20
"""Of the file's beginning: what its columns and their types are told from."""
BOM = b"\xef\xbb\xbf"
_ROW = re.compile(r" in row \d+$|(?<=: )Row #\d+: ")
"""Counted by pyarrow from wherever it was told to begin, which is no row of the file."""


class BadRecordError(PrimusdError):
    """A record that cannot be decoded.

    Attributes:
        index: Which one, among those that were to be decoded.
    """

    code = "BadRecord"

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class HeadError(PrimusdError):
    """A file whose beginning tells no columns."""

    code = "BadHead"


class Decoder(Protocol):
    """Makes rows of records."""

    @property
    def needs_head(self) -> bool:
        """Whether `prepare` is to be called before anything is decoded."""
        ...

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Look at the beginning of a file; return where its first record begins.

        Raises:
            HeadError: It tells no columns.
        """
        ...

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return a row for each record.

        Raises:
            BadRecordError: One cannot be decoded; those before it can.
        """
        ...


class Values:
    """Records as they are, in a column for each field."""

    needs_head = False

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Return 0: records begin at once."""
        del head, is_whole
        return 0

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return the bytes of each field."""
        count = len(self._names)
        arrays = [
            binary_array(data, cut.begins[place::count], cut.stops[place::count])
            for place in range(count)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._names))


class LineValues:
    """Lines as they are, in one column `line`."""

    needs_head = False

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Return 0: lines begin at once."""
        del head, is_whole
        return 0

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return the bytes of each line; twice as fast as ranges that may lie anywhere."""
        lengths = cut.stops - cut.begins
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        values = data[: cut.consumed].replace(b"\r\n", b"").replace(b"\n", b"")
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(values)]
        lines = pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)
        return pa.RecordBatch.from_arrays([lines], names=["line"])


class Csv:
    """CSV: its columns have the names of the header, and types found in the first rows."""

    needs_head = True

    def __init__(self, options: Mapping[str, str], types: Mapping[str, str]) -> None:
        quote = options.get("quote", '"')
        self._parse = pa_csv.ParseOptions(
            delimiter=options.get("delimiter", ","),
            quote_char=quote or False,
            double_quote=bool(quote),
            newlines_in_values=options.get("multiline") == "true",
            ignore_empty_lines=True,
        )
        self._has_header = options.get("header", "true") == "true"
        self._types = types
        self._schema: pa.Schema | None = None

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Find names and types; the header is no record."""
        at = len(BOM) if head.startswith(BOM) else 0
        whole = head if is_whole else head[: head.rfind(b"\n") + 1]
        line_end = whole.find(b"\n", at) + 1 or len(whole)
        if not whole[at:line_end].strip():
            raise HeadError("it has no header" if self._has_header else "it has no row")
        names = self._read(whole[at:line_end], None, {}).column_names
        if self._has_header:
            names = [str(one) for one in self._names(whole[at:line_end])]
            at = line_end
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise HeadError(f"its header names column {twice!r} twice")
        given = {name: type_of(self._types[name]) for name in names if name in self._types}
        rows = whole[at:]
        if not rows.strip():
            found = pa.schema([(name, given.get(name, pa.null())) for name in names])
        else:
            try:
                found = self._read(rows, names, given).schema
            except pa.ArrowInvalid:
                # A row among the first is bad: types from those before it, which are tried alone.
                found = self._schema_before_fault(rows, names, given)
        self._schema = found
        return at

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return rows of the types that were found."""
        schema = self._schema
        assert schema is not None
        types = {field.name: field.type for field in schema}
        return decoded(
            data, cut, schema, lambda some: self._read(some, schema.names, types), "a row"
        )

    def _names(self, line: bytes) -> list[object]:
        table = self._read(line, None, {}, as_text=True)
        return [column[0].as_py() for column in table.columns]

    def _read(
        self,
        data: bytes,
        names: list[str] | None,
        types: Mapping[str, pa.DataType],
        *,
        as_text: bool = False,
    ) -> pa.Table:
        reading = pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(data) + 1,
            column_names=names,
            autogenerate_column_names=names is None,
        )
        converting = pa_csv.ConvertOptions(column_types=dict(types))
        if as_text:
            table = pa_csv.read_csv(BytesIO(data), reading, self._parse)
            every = {name: pa.string() for name in table.column_names}
            converting = pa_csv.ConvertOptions(column_types=every)
        return pa_csv.read_csv(BytesIO(data), reading, self._parse, converting)

    def _schema_before_fault(
        self, rows: bytes, names: list[str], given: Mapping[str, pa.DataType]
    ) -> pa.Schema:
        ends = np.flatnonzero(np.frombuffer(rows, np.uint8) == NEWLINE) + 1
        good = _good_count(
            len(ends), lambda count: self._can_read(rows[: ends[count - 1]], names, given)
        )
        if not good:
            return pa.schema([(name, given.get(name, pa.null())) for name in names])
        return self._read(rows[: ends[good - 1]], names, given).schema

    def _can_read(self, rows: bytes, names: list[str], given: Mapping[str, pa.DataType]) -> bool:
        try:
            self._read(rows, names, given)
        except pa.ArrowInvalid:
            return False
        return True


class Json:
    """JSON, an object a line: the columns and types of the first rows."""

    needs_head = True

    def __init__(
        self, types: Mapping[str, str], wanted: tuple[str, ...], *, ignores_others: bool
    ) -> None:
        """Make a decoder.

        Args:
            types: By column, in place of what is found.
            wanted: The columns; empty: all of the first rows.
            ignores_others: Keys of later rows that the first ones lack are left out.
        """
        self._types = types
        self._wanted = wanted
        self._ignores_others = ignores_others or bool(wanted)
        self._schema: pa.Schema | None = None

    def prepare(self, head: bytes, *, is_whole: bool) -> int:
        """Find columns and types."""
        at = len(BOM) if head.startswith(BOM) else 0
        rows = head[at:] if is_whole else head[at : head.rfind(b"\n") + 1]
        found: list[AnyField] = []
        if rows.strip():
            try:
                found = list(self._infer(rows))
            except pa.ArrowInvalid:
                ends = np.flatnonzero(np.frombuffer(rows, np.uint8) == NEWLINE) + 1
                good = _good_count(
                    len(ends), lambda count: self._can_infer(rows[: ends[count - 1]])
                )
                found = list(self._infer(rows[: ends[good - 1]])) if good else []
        names = outer_names(pa.schema(found), self._wanted) or [field.name for field in found]
        names = [*names, *(name for name in self._types if name not in names)]
        types = {field.name: field.type for field in found}
        types |= {name: type_of(text) for name, text in self._types.items()}
        known = [(name, types[name]) for name in names if name in types]
        self._schema = pa.schema(known)
        return at

    def decode(self, data: bytes, cut: Cut) -> pa.RecordBatch:
        """Return rows of the columns and types that were found."""
        schema = self._schema
        assert schema is not None
        options = pa_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="ignore" if self._ignores_others else "error",
        )
        return decoded(data, cut, schema, lambda some: _read_json(some, options), "an object")

    def _infer(self, rows: bytes) -> pa.Schema:
        given = pa.schema([(name, type_of(text)) for name, text in self._types.items()])
        options = pa_json.ParseOptions(explicit_schema=given, unexpected_field_behavior="infer")
        return _read_json(rows, options).schema

    def _can_infer(self, rows: bytes) -> bool:
        try:
            self._infer(rows)
        except pa.ArrowInvalid:
            return False
        return True


def type_of(text: str) -> pa.DataType:
    """Return a type by the name that a job file has for it."""
    unit = re.fullmatch(r"(timestamp|duration|time32|time64)\[(s|ms|us|ns)\]", text)
    if unit is None:
        # Any: the stubs know each name by itself.
        alias: Any = text
        found: pa.DataType = pa.type_for_alias(alias)
        return found
    made: Mapping[str, Callable[[Any], pa.DataType]] = {
        "timestamp": pa.timestamp,
        "duration": pa.duration,
        "time32": pa.time32,
        "time64": pa.time64,
    }
    return made[unit[1]](unit[2])


def binary_array(data: bytes, begins: np.ndarray, stops: np.ndarray) -> AnyArray:
    """Return some ranges of bytes as a column; ascending, disjoint."""
    lengths = stops - begins
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    codes = np.frombuffer(data, np.uint8)
    gaps = begins - np.concatenate(([0], stops[:-1])) if len(begins) else begins
    pattern = np.empty(2 * len(lengths), np.int64)
    pattern[0::2], pattern[1::2] = gaps, lengths
    keep = np.repeat(np.tile(np.array([False, True]), len(lengths)), pattern)
    values = codes[: len(keep)][keep]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(values.data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)


def decoded(
    data: bytes,
    cut: Cut,
    schema: pa.Schema,
    read: Callable[[bytes], pa.Table],
    what: str,
) -> pa.RecordBatch:
    """Return what pyarrow reads of all records; where it fails, the first that is bad.

    Raises:
        BadRecordError: One is.
    """
    count = len(cut.ends)
    if not count:
        return pa.RecordBatch.from_pylist([], schema=schema) if schema.names else _no_columns(0)
    first = int(cut.begins[0])
    stops = np.append(cut.ends[:-1], cut.ends[-1])
    fault = ""

    def rows_of(some: int) -> pa.Table | None:
        nonlocal fault
        try:
            table = read(data[first : int(stops[some - 1])])
        except pa.ArrowInvalid as error:
            fault = _ROW.sub("", str(error).split("\n", 1)[0])[:300]
            return None
        if schema.names and table.num_rows != some:
            fault = f"a line does not hold exactly {what}"
            return None
        return table

    table = rows_of(count)
    if table is None:
        good = _good_count(count, lambda some: rows_of(some) is not None)
        columns = ", ".join(f"{one.name}: {one.type}" for one in schema)[:300]
        told = f"; columns are {columns}; types: {{column: type}} says others" if columns else ""
        raise BadRecordError(f"{fault}{told}", good)
    if not schema.names:
        return _no_columns(count)
    return table.select(schema.names).combine_chunks().to_batches()[0]


def _read_json(data: bytes, options: pa_json.ParseOptions) -> pa.Table:
    reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pa_json.read_json(BytesIO(data), read_options=reading, parse_options=options)


def _no_columns(count: int) -> pa.RecordBatch:
    """Return rows of objects in which no key is known."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["_"])


def _good_count(count: int, is_good: Callable[[int], bool]) -> int:
    """Return how many of the first records are good, if a bad one makes all longer runs bad."""
    low, high = 0, count
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low
