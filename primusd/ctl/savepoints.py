"""data NAME savepoint …, dead letters by hand, and what happened to a stream."""

import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from primusd.ctl.call import Call
from primusd.ctl.client import Json
from primusd.ctl.documents import count, mappings, text
from primusd.ctl.failures import USAGE, CtlError
from primusd.ctl.output import grouped
from primusd.ctl.reading import pages
from primusd.datafeed.ledger.portable import Portable, encode
from primusd.errors import PrimusdError
from primusd.position_files import read_positions

VERBS = ("create", "list", "show", "restore", "drop", "export", "import")
_FORMS = ("table", "wide", "json", "yaml", "jsonl")


def savepoint(call: Call, path: str, words: Sequence[str], file: str) -> None:
    """Make, list, show, restore, drop, export or import a savepoint.

    Args:
        call: Of the verb.
        path: Of the stream.
        words: What is done, and the savepoint's name.
        file: Where an export goes, or an import comes from; "-" standard output or input.
    """
    verb, name = (words[0] if words else "list"), (words[1] if len(words) > 1 else "")
    if verb not in VERBS:
        hint = f"savepoint {' | '.join(VERBS)}"
        raise CtlError(f"savepoint has no action {verb!r}", hint=hint, exit_code=USAGE)
    if verb != "list" and not name:
        raise CtlError(f"savepoint {verb} needs a name", exit_code=USAGE)
    where = f"{path}/savepoints"
    one = f"{where}/{quote(name, safe='')}"
    match verb:
        case "create":
            _told(call, call.client.call("POST", where, body={"name": name}), "is kept")
        case "list":
            _list(call, mappings(call.client.get(where), "items"))
        case "show":
            _list(call, [call.client.get(one)])
        case "restore":
            call.client.call("POST", f"{one}:restore")
            call.printer.line(f"{name}: positions went back; what was taken since comes again")
        case "drop":
            _told(call, call.client.call("DELETE", one), "is dropped")
        case "export":
            _export(call.client.get(f"{one}/positions"), file)
        case _:
            _import(call, where, name, file)


def _told(call: Call, found: Json, what: str) -> None:
    printer = call.printer_of(_FORMS)
    if printer.form in ("json", "yaml", "jsonl"):
        printer.document(found)
    else:
        done = grouped(count(found, "done") or 0)
        printer.line(f"{text(found, 'name')} {what}: {done} taken")


def _list(call: Call, found: Sequence[Json]) -> None:
    printer = call.printer_of(_FORMS)
    if printer.form == "jsonl":
        for one in found:
            printer.json_line(one)
    elif printer.form in ("json", "yaml"):
        printer.document({"kind": "SavepointList", "items": list(found)})
    elif not found:
        printer.line("no savepoints; make one with: primusctl data NAME savepoint create SAVEPOINT")
    else:
        header = ("SAVEPOINT", "MADE", "AGE", "STEP", "TAKEN", "LEFT OUT", "FILES", "IN PART")
        printer.table(header, [_row(one, printer.age(one.get("sealedAt"))) for one in found])


def _row(one: Json, age: str) -> list[object]:
    keys = ("done", "skipped", "unitsDone", "unitsOpen")
    first = (text(one, "name"), text(one, "origin"), age, one.get("step", ""))
    return [*first, *(grouped(count(one, key) or 0) for key in keys)]


def _export(positions: Json, file: str) -> None:
    data = encode(msgspec.convert(positions, Portable))
    if not file or file == "-":
        sys.stdout.write(data.decode())
        return
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise CtlError(
            f"{file} cannot be written: {error.strerror}",
            hint="--file names another one, or - for standard output",
            exit_code=USAGE,
        ) from error


def _import(call: Call, where: str, name: str, file: str) -> None:
    """Send what was exported, or a folder of the original's."""
    if not file:
        raise CtlError(
            "savepoint import needs --file: what export wrote, or a folder of the original's",
            exit_code=USAGE,
        )
    source = str(Path("/dev/stdin" if file == "-" else file).absolute())
    stream = where.rsplit("/", 2)[1]
    try:
        found = read_positions(source, stream)
    except PrimusdError as error:
        raise CtlError(f"{file}: {error.message}", hint=error.hint, exit_code=USAGE) from error
    if found is None:
        raise CtlError(
            f"there are no positions of stream {stream} in {file}",
            hint="a file that export wrote, or a savepoint folder of the original's",
            exit_code=USAGE,
        )
    body = {"name": name, "positions": msgspec.to_builtins(found[0])}
    _told(call, call.client.call("POST", where, body=body), "is kept")


def retry(call: Call, path: str, words: Sequence[str], *, is_all: bool) -> None:
    """Let ranges that are left out be read again."""
    tasks = _dead(call, path) if is_all else [_task(word) for word in words]
    if not tasks:
        if is_all:
            call.printer.line("nothing is left out but what was skipped by hand")
            return
        raise CtlError(
            "retry needs ranges, as data NAME dead lists them, or --all", exit_code=USAGE
        )
    for task in tasks:
        call.client.call("POST", f"{path}:retry", body=task)
        call.printer.line(f"{_word(task)} is to be read again")


def skip(call: Call, path: str, words: Sequence[str], *, is_all: bool, reason: str) -> None:
    """Leave ranges out, or accept those that are left out already; the reason is kept."""
    if not reason.strip():
        raise CtlError("skip needs --reason: it is kept with what is left out", exit_code=USAGE)
    tasks = _dead(call, path) if is_all else [_task(word) for word in words]
    if not tasks and not is_all:
        raise CtlError(
            "skip needs ranges, as data NAME tasks lists them, or --all", exit_code=USAGE
        )
    for task in tasks:
        call.client.call("POST", f"{path}:skip", body={**task, "reason": reason})
        call.printer.line(f"{_word(task)} is left out: {reason}")


def _dead(call: Call, path: str) -> list[dict[str, int]]:
    """Return all ranges that are left out, and that nobody has accepted yet."""
    return [
        {key: count(one, key) or 0 for key in ("epoch", "unit", "lo")}
        for one in pages(call.client, f"{path}/tasks", {"phase": "dead"})
        if text(one, "fault") != "skipped"
    ]


def _task(word: str) -> dict[str, int]:
    """Return the range that `PASS.FILE.POSITION` names."""
    parts = word.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts) or parts[0] == "0":
        raise CtlError(
            f"{word!r} is no range",
            hint="data NAME dead lists them: PASS.FILE.POSITION, as 1.0.4096",
            exit_code=USAGE,
        )
    return {"epoch": int(parts[0]) - 1, "unit": int(parts[1]), "lo": int(parts[2])}


def _word(task: dict[str, int]) -> str:
    return f"{task['epoch'] + 1}.{task['unit']}.{task['lo']}"


def history(call: Call, paths: Sequence[str]) -> None:
    """Show what happened to streams."""
    printer = call.printer_of(_FORMS)
    found = [call.client.get(f"{path}/history") for path in paths]
    if printer.form in ("json", "yaml"):
        printer.document({"kind": "StreamHistoryList", "items": found})
        return
    rows = [
        {"stream": text(one, "stream"), **moment}
        for one in found
        for moment in mappings(one, "items")
    ]
    if printer.form == "jsonl":
        for row in rows:
            printer.json_line(row)
        return
    keys = ("stream", "at", "reason", "by", "message")
    header = ("STREAM", "AT", "WHAT", "BY", "MESSAGE")
    printer.table(header, [[text(row, key) for key in keys] for row in rows])
