"""queue: what queues may use and who waits; set them up, and move jobs in them."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, named_path
from primusd.ctl.documents import mapping, mappings, text
from primusd.ctl.failures import OK, USAGE, CtlError
from primusd.ctl.output import Printer, short_bytes

ACTIONS = ("list", "move", "set", "reset")
_FORMS = ("table", "wide", "json", "yaml", "name", "jsonl")
_QUOTA = {"cpu": "cpuMilli", "memory": "memoryBytes", "gpu": "gpus"}
_SETTINGS = "quota.cpu=8 quota.memory=64Gi quota.gpu=none preemption=lowerPriority state=closed"


@click.command("queue", cls=Verb)
@click.argument("action", default="list", metavar=f"[{'|'.join(ACTIONS)}]")
@click.argument("name", default="", metavar="[QUEUE|JOB]")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE...]")
@click.option("--priority", type=click.IntRange(0, 100), help="move: 0 to 100, higher comes first.")
@click.option("--first", is_flag=True, help="move: before all others of its priority.")
@shared_options
@pass_call
def queue(
    call: Call,
    action: str,
    name: str,
    settings: tuple[str, ...],
    priority: int | None,
    *,
    first: bool,
) -> int:
    """List queues, or who waits in one; set one up; move a job that waits.

    set takes quota.cpu, quota.memory, quota.gpu (none: not limited), preemption (never or
    lowerPriority) and state (open, or closed: takes no new jobs, and what it has goes on). What is
    set wins over the configuration file until reset.
    """
    if action not in ACTIONS:
        hint = " | ".join(ACTIONS)
        raise CtlError(f"queue has no action {action!r}", hint=hint, exit_code=USAGE)
    if action != "move" and (priority is not None or first):
        raise CtlError("--priority and --first belong to queue move", exit_code=USAGE)
    if action != "set" and settings:
        raise CtlError(f"queue {action} takes no settings", exit_code=USAGE)
    match action:
        case "list":
            _list(call, name)
        case "move":
            _move(call, _named(action, name), priority, first=first)
        case "set":
            document = call.client.call("POST", _path(name, "set"), body=_body(name, settings))
            _tell(call.printer_of(_FORMS), document)
        case _:
            document = call.client.call("POST", _path(_named(action, name), "reset"), body={})
            _tell(call.printer_of(_FORMS), document)
    return OK


def _named(action: str, name: str) -> str:
    if not name:
        what = "a job" if action == "move" else "a queue"
        raise CtlError(f"queue {action} needs {what}", hint="queue list", exit_code=USAGE)
    return name


def _path(queue_name: str, action: str) -> str:
    return named_path("queues", queue_name, action)


def _list(call: Call, name: str) -> None:
    printer = call.printer_of(_FORMS)
    if name:
        _list_one(printer, call.client.get(named_path("queues", name)))
        return
    document = call.client.get("/api/v1/queues")
    match printer.form:
        case "json" | "yaml":
            printer.document(document)
        case "jsonl":
            for one in mappings(document, "items"):
                printer.json_line(one)
        case "name":
            for one in mappings(document, "items"):
                printer.line(text(one, "name"))
        case _:
            header = ["QUEUE", "STATE", "WAITING", "RUNNING", "CPU", "MEMORY", "GPU", "PREEMPTION"]
            rows = [_row(one, is_wide=printer.is_wide) for one in mappings(document, "items")]
            printer.table([*header, "FROM"] if printer.is_wide else header, rows)


def _row(document: Json, *, is_wide: bool) -> list[object]:
    row: list[object] = [document.get(key) for key in ("name", "state", "waiting", "running")]
    row += [_used_of(document, key) for key in _QUOTA.values()]
    row.append(document.get("preemption"))
    return [*row, document.get("origin")] if is_wide else row


def _used_of(document: Json, key: str) -> str:
    """Return what is used, and of how much where that is limited: `6/8`."""
    used, quota = mapping(document, "used").get(key), mapping(document, "quota").get(key)
    return _amount(key, used) if quota is None else f"{_amount(key, used)}/{_amount(key, quota)}"


def _amount(key: str, value: object) -> str:
    if key == "memoryBytes":
        return short_bytes(value)
    if key == "cpuMilli" and isinstance(value, int):
        return f"{value / 1000:g}"
    return str(value)


def _list_one(printer: Printer, document: Json) -> None:
    """Print who waits in a queue, in order."""
    jobs = mappings(document, "jobs")
    match printer.form:
        case "json" | "yaml":
            printer.document(document)
        case "jsonl":
            for one in jobs:
                printer.json_line(one)
        case "name":
            for one in jobs:
                printer.line(f"{text(one, 'namespace')}/{text(one, 'name')}")
        case _:
            rows = [
                [
                    one.get("position"),
                    f"{text(one, 'namespace')}/{text(one, 'name')}",
                    one.get("priority"),
                    printer.age(one.get("since")),
                    text(one, "reason"),
                    text(one, "message"),
                ]
                for one in jobs
            ]
            printer.table(["POSITION", "JOB", "PRIORITY", "AGE", "REASON", "WHY"], rows)


def _body(name: str, settings: tuple[str, ...]) -> Json:
    """Return what `set` sends of its words."""
    if not name or not settings:
        raise CtlError("queue set needs a queue and what to set", hint=_SETTINGS, exit_code=USAGE)
    body: dict[str, object] = {}
    quota: dict[str, object] = {}
    for one in settings:
        key, equals, value = one.partition("=")
        unit = key.removeprefix("quota.")
        if equals and key in ("preemption", "state"):
            body[key] = value
        elif equals and key != unit and unit in _QUOTA:
            quota[unit] = _quota_value(unit, value)
        else:
            raise CtlError(f"queue set does not know {one!r}", hint=_SETTINGS, exit_code=USAGE)
    return body | ({"quota": quota} if quota else {})


def _quota_value(unit: str, value: str) -> object:
    if value == "none":
        return None
    if unit == "memory":
        return value
    try:
        return float(value) if unit == "cpu" else int(value)
    except ValueError as error:
        message = f"quota.{unit} is a number or none, not {value!r}"
        raise CtlError(message, exit_code=USAGE) from error


def _move(call: Call, name: str, priority: int | None, *, first: bool) -> None:
    if priority is None and not first:
        raise CtlError("say where to: --priority N, or --first", exit_code=USAGE)
    namespace, job = call.job(name)
    found = call.client.get(f"/api/v1/namespaces/{namespace}/jobs/{job}")
    body: dict[str, object] = {"job": text(found, "uid"), "namespace": namespace, "first": first}
    if priority is not None:
        body["priority"] = priority
    path = _path(text(mapping(found, "spec"), "queue"), "move")
    document = call.client.call("POST", path, body=body)
    printer = call.printer_of(_FORMS)
    if printer.form in ("json", "yaml"):
        printer.document(document)
        return
    status = mapping(mapping(document, "status"), "queue")
    place = f"{status['position']} in {text(status, 'name')}" if status else "waits no more"
    printer.line(f"{text(document, 'name')} {place}")


def _tell(printer: Printer, document: Json) -> None:
    if printer.form in ("json", "yaml"):
        printer.document(document)
        return
    quota = mapping(document, "quota")
    limits = [
        f"{key} {_amount(long, quota[long])}" for key, long in _QUOTA.items() if long in quota
    ]
    printer.line(
        f"{text(document, 'name')} {text(document, 'state')}, "
        f"{', '.join(limits) or 'no quota'}, preemption {text(document, 'preemption')}"
    )


COMMANDS = {"queue": queue}
