"""preview: the first rows of a job file's data, read here, by the readers that jobs have."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json
from primusd.ctl.failures import USAGE, CtlError
from primusd.ctl.files import JobFile, read_job_file
from primusd.ctl.output import Printer
from primusd.datafeed.protocol import Unit
from primusd.job.spec import JobSpec, StreamSpec, has_files, is_endless

if TYPE_CHECKING:  # pyarrow takes longer to load than a call of any other verb lasts.
    import pyarrow as pa

    from primusd.datafeed.formats.opening import Opener
    from primusd.datafeed.formats.settings import Place
    from primusd.datafeed.reader.transforming import Transformer

ROWS = 10
ROWS_MAX = 100_000
BLOCK_BYTES = 256 << 10
CELL_MAX = 60
Ranges = Sequence[tuple[Unit, int, int]]
"""Units, each with where to begin and where to end; -1: at its end."""
_FORMS = ("table", "wide", "json", "yaml", "jsonl")


@click.command("preview", cls=Verb)
@click.argument("file")
@click.argument("stream", default="")
@click.option(
    "--rows",
    default=ROWS,
    type=click.IntRange(1, ROWS_MAX),
    help="Rows of each stream.",
    show_default=True,
)
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="In place of the file's.")
@shared_options
@pass_call
def preview(call: Call, file: str, stream: str, rows: int, sets: tuple[str, ...]) -> None:
    """Show the first rows of a job file's data, as its trainers get them. Needs no daemon."""
    printer = call.printer_of(_FORMS)
    job = read_job_file(file, sets=sets, namespace=call.namespace)
    found = [_previewed(job, one, rows) for one in _streams(job.parsed.spec, stream)]
    match printer.form:
        case "jsonl":
            for one in found:
                for row in _list(one["rows"]):
                    printer.json_line(row)
        case "json" | "yaml":
            printer.document({"kind": "PreviewList", "items": found})
        case _:
            for number, one in enumerate(found):
                if number:
                    printer.line()
                _print(printer, one)


def _streams(spec: JobSpec, name: str) -> list[StreamSpec]:
    if not spec.data:
        raise CtlError("the job file has no data section", exit_code=USAGE)
    if not name:
        return list(spec.data.values())
    if name not in spec.data:
        have = ", ".join(spec.data)
        raise CtlError(f"there is no stream {name}", hint=f"streams: {have}", exit_code=USAGE)
    return [spec.data[name]]


def _previewed(job: JobFile, stream: StreamSpec, wanted: int) -> Json:
    """Return a stream's first rows as a document."""
    from primusd.datafeed.formats.base import ReadError  # noqa: PLC0415
    from primusd.datafeed.formats.opening import Opener  # noqa: PLC0415
    from primusd.datafeed.formats.settings import Place, settings_of  # noqa: PLC0415
    from primusd.job.formats import plan_of  # noqa: PLC0415

    ranges, is_complete = _listed(stream) if has_files(stream) else _followed(stream)
    place = Place(_folder(job, stream))
    settings = settings_of(plan_of(stream), memory_bytes=stream.decoding.memory_bytes, place=place)
    opener = Opener(settings)
    transformer = _transformer(stream, place)
    rows: list[Json] = []
    columns: list[Json] = []
    at = ranges[0][0]
    try:
        for unit, lo, hi in ranges:
            at = unit
            for batch in _batches(opener, transformer, unit, (lo, hi)):
                columns = columns or _columns(batch)
                rows += _rows(batch, wanted - len(rows))
                if len(rows) >= wanted:
                    break
            if len(rows) >= wanted:
                break
    except ReadError as error:
        head = f"it begins with {error.head!r}" if error.head else ""
        raise CtlError(
            f"stream {stream.name}: {error.message}", details=[head] if head else []
        ) from error
    finally:
        opener.close()
        if transformer is not None:
            transformer.close()
    return {
        "stream": stream.name,
        "format": at.options.get("format", stream.format),
        "files": len(ranges),
        "complete": is_complete,
        "first": ranges[0][0].location,
        "columns": columns,
        "rows": rows,
    }


def _listed(stream: StreamSpec) -> tuple[Ranges, bool]:
    """Return the first files of a stream, and whether there are no others."""
    from primusd.datafeed.sources.files import ListingError  # noqa: PLC0415
    from primusd.datafeed.sources.listing import Listing  # noqa: PLC0415

    try:
        piece = Listing(stream).piece(0)
    except ListingError as error:
        raise CtlError(f"stream {stream.name}: {error.message}", hint=error.hint) from error
    if not piece.units:
        raise CtlError(f"stream {stream.name}: no file is there yet", details=piece.missing)
    return [(unit, 0, -1) for unit in piece.units], piece.is_complete


def _followed(stream: StreamSpec) -> tuple[Ranges, bool]:
    """Return the partitions of a stream as they are now, and whether none can come."""
    from primusd.datafeed.sources.files import ListingError  # noqa: PLC0415
    from primusd.following import topics_now  # noqa: PLC0415

    try:
        found = anyio.run(partial(topics_now, stream, now_ms=time.time_ns() // 1_000_000))
    except (ListingError, TimeoutError) as error:
        said = error.message if isinstance(error, ListingError) else "the cluster does not answer"
        raise CtlError(f"stream {stream.name}: {said}") from error
    if not any(hi > lo for _, lo, hi in found):
        raise CtlError(f"stream {stream.name}: no record is there yet")
    return [one for one in found if one[2] > one[1]], not is_endless(stream)


def _folder(job: JobFile, stream: StreamSpec) -> str:
    """Return where a class of the user's is looked for."""
    for role in job.parsed.spec.roles.values():
        if role.workdir and any(one.stream == stream.name for one in role.data):
            return role.workdir
    return str(Path(job.folder))


def _transformer(stream: StreamSpec, place: "Place") -> "Transformer | None":
    from primusd.datafeed.reader.transforming import Transformer  # noqa: PLC0415

    if stream.transform is None:
        return None
    memory_bytes = stream.decoding.memory_bytes
    return Transformer(stream.transform, stream.name, place, memory_bytes=memory_bytes)


def _batches(
    opener: "Opener", transformer: "Transformer | None", unit: Unit, positions: tuple[int, int]
) -> "Iterator[pa.RecordBatch]":
    lo, hi = positions
    opened = opener.open(unit)
    if transformer is not None:
        opened = transformer.unit(opened, unit, 0)
    for block in opened.rows(lo, opened.end if hi < 0 else hi, block_bytes=BLOCK_BYTES):
        if block.row_count:
            yield block.batch


def _columns(batch: "pa.RecordBatch") -> list[Json]:
    return [{"name": field.name, "type": str(field.type)} for field in batch.schema]


def _rows(batch: "pa.RecordBatch", count: int) -> list[Json]:
    from primusd.datafeed.formats.encoding import plain_rows  # noqa: PLC0415

    return [
        {name: _plain(value) for name, value in row.items()}
        for row in plain_rows(batch.slice(0, count))
    ]


def _plain(value: object) -> object:
    """Return a value as JSON has it; bytes as the text they are, where they are one."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else None
        case dict():
            return {str(key): _plain(part) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case _:
            return str(value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _print(printer: Printer, found: Mapping[str, object]) -> None:
    more = "" if found["complete"] else " or more"
    count = found["files"]
    of_topics = found["format"] == ""
    what = "partition" if of_topics else "file"
    files = f"{count}{more} {what}{'' if count == 1 and not more else 's'}"
    form = "records" if of_topics else found["format"]
    printer.line(f"{found['stream']}: {form}, {files}, from {found['first']}")
    columns = [one for one in _list(found["columns"]) if isinstance(one, dict)]
    rows = [one for one in _list(found["rows"]) if isinstance(one, dict)]
    if not rows:
        printer.line("  no row")
        return
    header = [f"{one['name']} ({one['type']})" for one in columns]
    names = [str(one["name"]) for one in columns]
    width = None if printer.is_wide or not printer.is_terminal else CELL_MAX
    printer.table(header, [[_cell(row.get(name), width) for name in names] for row in rows])


def _cell(value: object, width: int | None) -> str:
    import json  # noqa: PLC0415 only where there is a row

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


COMMANDS = {"preview": preview}
