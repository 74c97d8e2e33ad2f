"""data: what a job reads: its tasks, the proof that no row is missing, pause and resume."""

from collections.abc import Sequence

import click

from primusd.ctl import savepoints
from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.describing import stream_row
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.failures import FAILED, OK, USAGE, CtlError
from primusd.ctl.feed_figures import (
    READER_HEADER,
    SOURCE_HEADER,
    reader_row,
    source_row,
    told_lines,
)
from primusd.ctl.output import Printer, grouped
from primusd.ctl.reading import pages

ACTIONS = (
    "status",
    "tasks",
    "dead",
    "retry",
    "skip",
    "verify",
    "pause",
    "resume",
    "history",
    "savepoint",
)
OF_ONE_STREAM = ("retry", "skip", "savepoint")
_FORMS = ("table", "wide", "json", "yaml", "jsonl")


@click.command("data", cls=Verb)
@click.argument("name")
@click.argument("action", default="status", metavar=f"[{'|'.join(ACTIONS)}]")
@click.argument("words", nargs=-1, metavar="[STREAM | RANGE… | create|list|… SAVEPOINT]")
@click.option("--phase", type=click.Choice(["leased", "waiting", "dead"]), help="Of tasks.")
@click.option("--stream", "named", default="", help="Where a job reads several.")
@click.option("--all", "is_all", is_flag=True, help="retry, skip: all that are left out.")
@click.option("--reason", default="", help="skip: why; it is kept.")
@click.option("--file", default="", help="savepoint export, import: a file; - for a pipe.")
@shared_options
@pass_call
def data(call: Call, /, name: str, action: str, words: tuple[str, ...], **options: object) -> int:
    """Show and steer what a job reads; verify exits 1 when rows are not accounted for."""
    namespace, job_name = call.job(name)
    path = job_path(namespace, job_name, "data")
    named, reason = str(options["named"]), str(options["reason"])
    is_all = options["is_all"] is True
    if action in OF_ONE_STREAM:
        where = f"{path}/{named or _only_stream(call, path)}"
        match action:
            case "retry":
                savepoints.retry(call, where, words, is_all=is_all)
            case "skip":
                savepoints.skip(call, where, words, is_all=is_all, reason=reason)
            case _:
                savepoints.savepoint(call, where, words, str(options["file"]))
        return OK
    phase = str(options["phase"] or "")
    return _act(call, path, action, named or (words[0] if words else ""), phase)


def _act(call: Call, path: str, action: str, stream: str, phase: str) -> int:
    match action:
        case "status":
            _status(call, path, stream)
        case "tasks":
            _tasks(call, path, stream, phase)
        case "dead":
            _tasks(call, path, stream, "dead")
        case "verify":
            return _verify(call, path, stream)
        case "history":
            names = [stream] if stream else [text(one, "name") for one in _streams(call, path, "")]
            savepoints.history(call, [f"{path}/{one}" for one in names])
        case "pause" | "resume":
            where = f"{path}/{stream}" if stream else path
            found = call.client.call("POST", f"{where}:{action}")
            _print_streams(call, [found] if stream else mappings(found, "items"))
        case _:
            hint = " | ".join(ACTIONS)
            raise CtlError(f"data has no action {action!r}", hint=hint, exit_code=USAGE)
    return OK


def _only_stream(call: Call, path: str) -> str:
    """Return the name of the only stream of a job.

    Raises:
        CtlError: It has none, or several.
    """
    names = [text(one, "name") for one in _streams(call, path, "")]
    if len(names) != 1:
        hint = f"say --stream; it reads {', '.join(names)}" if names else "it reads no data"
        raise CtlError("which stream?", hint=hint, exit_code=USAGE)
    return names[0]


def _streams(call: Call, path: str, stream: str) -> list[Json]:
    if stream:
        return [call.client.get(f"{path}/{stream}")]
    return mappings(call.client.get(path), "items")


def _status(call: Call, path: str, stream: str) -> None:
    _print_streams(call, _streams(call, path, stream))


def _print_streams(call: Call, streams: Sequence[Json]) -> None:
    printer = call.printer_of(_FORMS)
    if printer.form == "jsonl":
        for one in streams:
            printer.json_line(one)
        return
    if printer.form in ("json", "yaml"):
        printer.document({"kind": "StreamList", "items": list(streams)})
        return
    if not streams:
        printer.line("this job reads no data")
        return
    header = ("STREAM", "PHASE", "EPOCH", "DONE", "OF", "UNIT", "PART", "PER SECOND", "LEFT")
    printer.table(header, [stream_row(text(one, "name"), _flat(one)) for one in streams])
    for one in streams:
        _print_stream(printer, one)


def _flat(stream: Json) -> Json:
    """Return a stream with its positions beside it, as a job's status has them."""
    return {**stream, **mapping(stream, "positions")}


def _print_stream(printer: Printer, stream: Json) -> None:
    units = mapping(stream, "units")
    printer.line()
    partitions = mappings(stream, "partitions")
    of_topics = text(mapping(stream, "positions"), "unit") == "offsets"
    what = "partition" if of_topics else "file"
    files = f"1 {what}" if units.get("listed") == 1 else f"{text(units, 'listed')} {what}s"
    printer.line(f"{text(stream, 'name')}: {files}, {_listed_words(stream, units)}")
    for line in told_lines(stream):
        printer.line(f"  {line}")
    sources = mappings(stream, "sources")
    if sources:
        printer.table(SOURCE_HEADER, [source_row(one) for one in sources])
    if partitions:
        names = ("PARTITION", "POSITION", "END", "LAG", "IN/S", "READ/S")
        printer.table(names, [_partition_row(one) for one in partitions])
    kept = mappings(stream, "savepoints")
    if kept:
        savepoints_word = "1 savepoint" if len(kept) == 1 else f"{len(kept)} savepoints"
        printer.line(f"  {savepoints_word}, the newest {text(kept[-1], 'name')}")
    readers = mappings(stream, "readers")
    for reader in readers:
        if text(reader, "trouble"):
            printer.line(f"  {text(reader, 'replica')} waits: {text(reader, 'trouble')}")
    if readers:
        printer.table(READER_HEADER, [reader_row(one) for one in readers])


def _listed_words(stream: Json, units: Json) -> str:
    lag = count(stream, "lag")
    behind = f", {grouped(lag)} offsets behind" if lag else ""
    if units.get("complete") is True:
        return f"all listed{behind}"
    if text(stream, "phase") in ("Failed", "Closed"):
        return "not all listed"
    if stream.get("finite") is False:
        return f"followed without an end{behind}"
    return f"still listing{behind}"


def _partition_row(partition: Json) -> list[object]:
    keys = ("position", "end", "lag", "producedPerSecond", "readPerSecond")
    return [partition.get("location"), *(grouped(partition.get(key)) for key in keys)]


def _tasks(call: Call, path: str, stream: str, phase: str) -> None:
    printer = call.printer_of(_FORMS)
    names = [stream] if stream else [text(one, "name") for one in _streams(call, path, "")]
    found = [
        {"stream": name, **task}
        for name in names
        for task in pages(call.client, f"{path}/{name}/tasks", {"phase": phase})
    ]
    if printer.form == "jsonl":
        for task in found:
            printer.json_line(task)
    elif printer.form in ("json", "yaml"):
        printer.document({"kind": "TaskList", "items": found})
    else:
        header = ("STREAM", "RANGE", "PHASE", "TO", "AT", "HOLDER", "WHERE", "WHAT")
        printer.table(header, [_task_row(task) for task in found])


def _task_row(task: Json) -> list[object]:
    what = ": ".join(part for part in (text(task, "fault"), text(task, "text")) if part)
    if text(task, "head"):
        what += f" [{_printable(text(task, 'head'))}]"
    place = f"{_told_epoch(task)}.{task.get('unit')}.{task.get('lo')}"
    keys = ("hi", "position", "replica", "location")
    who = text(task, "replica") or text(task, "by")
    found = {**task, "replica": who}
    return [task.get("stream"), place, task.get("phase"), *(found.get(key) for key in keys), what]


def _printable(digits: str) -> str:
    """Return the first bytes of a record as text, what is none of it as dots."""
    head = bytes.fromhex(digits).decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "." for one in head)[:32]


def _told_epoch(found: Json) -> int:
    """Return which pass it is, from 1 as every table tells it; documents count from 0."""
    return (count(found, "epoch") or 0) + 1


def _verify(call: Call, path: str, stream: str) -> int:
    printer = call.printer_of(_FORMS)
    where = f"{path}/{stream}" if stream else path
    found = call.client.call("POST", f"{where}:verify")
    proofs = [found] if stream else mappings(found, "items")
    if printer.form in ("json", "yaml", "jsonl"):
        # Most jobs read one stream: its proof alone is what a script wants to look at.
        printer.document(proofs[0] if len(proofs) == 1 else found)
    else:
        for one in proofs:
            _print_proof(printer, one)
    return OK if found.get("ok") is True else FAILED


def _verdict_of(proof: Json) -> str:
    """Return what a proof says: rows that were never read are no rows that were lost."""
    if proof.get("ok") is True:
        return "every one accounted for once"
    if mappings(proof, "gaps") or mappings(proof, "overlaps"):
        return "NOT every one accounted for"
    if count(proof, "waiting") or count(proof, "leased"):
        return "each accounted for, and not all of them read"
    return "NOT every one accounted for"


def _print_proof(printer: Printer, proof: Json) -> None:
    unit, name = text(proof, "unit"), text(proof, "stream")
    listed = count(proof, "listed")
    total = grouped(listed) if listed is not None else "a number not known yet of"
    printer.line(f"{name}: {total} {unit}, {_verdict_of(proof)}")
    parts = [
        f"{grouped(value)} {word}"
        for key, word in (
            ("done", "done"),
            ("leased", "being read"),
            ("waiting", "waiting"),
            ("skipped", "skipped"),
            ("dead", "left out"),
        )
        if (value := count(proof, key)) or key == "done"
    ]
    came = count(proof, "carried")
    if came:
        parts.append(f"{grouped(came)} of those done came with a savepoint")
    if rewound := count(proof, "rewound"):
        parts.append(f"{grouped(rewound)} taken back by restores and read again")
    why = mapping(proof, "leftOut")
    if why:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(why.items()))
        parts.append(f"ranges left out: {kinds}")
    repeated = count(proof, "repeatedMax") or 0
    twice = f"at most {grouped(repeated)} came twice" if repeated else "none came twice"
    printer.line(f"  {', '.join(parts)}; {twice}")
    if text(proof, "text"):
        printer.line(f"  {text(proof, 'text')}")
    for key, word in (("gaps", "gap"), ("overlaps", "twice")):
        for flaw in mappings(proof, key):
            place = f"{text(flaw, 'location')} [{text(flaw, 'lo')}, {text(flaw, 'hi')})"
            printer.line(f"  {word}: epoch {_told_epoch(flaw)} {place}")


COMMANDS = {"data": data}
