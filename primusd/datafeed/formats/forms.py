"""The formats made of records: which framing and which decoder each has."""

from dataclasses import dataclass

from primusd.datafeed.formats.decoders import Csv, Decoder, Json, LineValues, Values
from primusd.datafeed.formats.framings import (
    Chunks,
    FixedSize,
    Framing,
    Lines,
    Prefixed,
    TFRecords,
)
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.storage.base import ReadError

CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How a file of records is read."""

    framing: Framing
    decoder: Decoder
    start: str
    """How the first record at or after a byte is found: `line`, `size`, `any`, `tfrecord`, or
    `walk`, from the nearest record that is known."""
    direct: tuple[str, ...]
    """Framings of a pipe in which bytes go as they stand in the file."""


def form_of(name: str, settings: Settings, location: str) -> RecordForm:
    """Return how files of a format are read.

    Args:
        name: One of `job.formats.FORMATS`, none of those that pyarrow reads whole.
        settings: Of the stream.
        location: Of the file, for what its name tells.

    Raises:
        ReadError: The options do not fit: the job file is of another version.
    """
    options = settings.options
    most = settings.record_bytes_max
    match name:
        case "text":
            return RecordForm(Lines(keeps_blank=True), LineValues(), "line", ("lines", "raw"))
        case "jsonl":
            ignores = settings.on_schema != "fail"
            wanted = _wanted(settings)
            objects = Json(settings.types, wanted, ignores_others=ignores)
            return RecordForm(Lines(keeps_blank=False), objects, "line", ("lines", "raw"))
        case "csv":
            told = {"delimiter": "\t"} if _is_tabbed(location) else {}
            is_multiline = options.get("multiline") == "true"
            quote = options.get("quote", '"') if is_multiline else ""
            return RecordForm(
                Lines(keeps_blank=False, quote=quote),
                Csv({**told, **options}, settings.types),
                "walk" if is_multiline else "line",
                ("lines", "raw"),
            )
        case "raw":
            chunk = int(options.get("chunk", CHUNK_BYTES))
            return RecordForm(Chunks(chunk), Values(("chunk",)), "any", ("raw",))
        case "tfrecord":
            framing = TFRecords(verify=options.get("verify", "full"), record_bytes_max=most)
            return RecordForm(framing, _of_messages(settings), "tfrecord", ("raw",))
        case "records" if "size" in options:
            fixed = FixedSize(int(options["size"]))
            return RecordForm(fixed, _of_messages(settings), "size", ("raw",))
        case "records" | "protobuf":
            names = tuple(filter(None, options.get("fields", "").split(","))) or ("record",)
            prefix = options.get("prefix", "varint")
            prefixed = Prefixed(prefix, field_count=len(names), record_bytes_max=most)
            return RecordForm(prefixed, _of_messages(settings, names), "walk", ("raw",))
        case _:
            raise ReadError(f"format {name} is none that this build reads", kind="data")


def _of_messages(settings: Settings, names: tuple[str, ...] = ("record",)) -> Decoder:
    """Return what decodes records: as messages where they are described."""
    message = settings.options.get("message", "")
    if not message or len(names) > 1:
        return Values(names)
    from primusd.datafeed.formats.messages import Messages  # noqa: PLC0415 protobuf is slow to load

    return Messages(settings.options.get("descriptors", ""), message, _wanted(settings))


def _wanted(settings: Settings) -> tuple[str, ...]:
    """Return the columns to decode: those that are given, and those that conditions look at."""
    if not settings.columns:
        return ()
    looked_at = (condition.column for condition in settings.filter)
    return tuple(dict.fromkeys((*settings.columns, *looked_at)))


def _is_tabbed(location: str) -> bool:
    name = location.lower()
    return ".tsv" in name[name.rfind("/") :]
