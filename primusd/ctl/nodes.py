"""nodes and strays: the hosts that run replicas, and processes that nobody here knows."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click

from primusd.ctl.call import Call, Verb, duration_s, pass_call, shared_options
from primusd.ctl.client import Json, named_path
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.draining import drain_node, shown_phase
from primusd.ctl.failures import USAGE, CtlError
from primusd.ctl.output import Printer, local_time, short_bytes

NODE_ACTIONS = ("list", "add", "cordon", "uncordon", "drain", "exclude", "forgive", "remove")
STRAY_ACTIONS = ("list", "adopt", "stop")
_FORMS = ("table", "wide", "json", "yaml", "name", "jsonl")


def _print_items(printer: Printer, document: Json, key: str) -> bool:
    """Print a list in one of the forms that are no table; False when a table is wanted."""
    match printer.form:
        case "json" | "yaml":
            printer.document(document)
        case "jsonl":
            for one in mappings(document, "items"):
                printer.json_line(one)
        case "name":
            for one in mappings(document, "items"):
                printer.line(text(one, key))
        case _:
            return False
    return True


def _needs_name(verb: str, action: str, name: str) -> str:
    if not name:
        raise CtlError(f"{verb} {action} needs a name", hint=f"{verb} list", exit_code=USAGE)
    return name


@click.command("nodes", cls=Verb)
@click.argument("action", default="list", metavar=f"[{'|'.join(NODE_ACTIONS)}]")
@click.argument("name", default="")
@click.option("--out", default="", metavar="FILE", help="add: where to; default: standard output.")
@click.option("--now", is_flag=True, help="drain: all at once, also what has no other place yet.")
@click.option("--no-wait", is_flag=True, help="drain: do not wait until all has moved.")
@click.option("--timeout", metavar="TIME", help="drain: wait no longer; it goes on.")
@click.option("--for", "lasting", metavar="TIME", help="exclude: how long, as 1h; at most 7d.")
@click.option("--job", default="", metavar="NAME", help="exclude: keep this job alone off it.")
@click.option("--reason", default="", metavar="TEXT", help="exclude: why; others see it.")
@click.option("--lost", is_flag=True, help="remove: what ran there is lost, and begins elsewhere.")
@shared_options
@pass_call
def nodes(call: Call, /, action: str, name: str, **options: object) -> None:
    """List nodes; add one, place nothing new on one (cordon), or again (uncordon).

    add writes the file for: primusd node --bootstrap FILE. It holds a key. drain moves what runs
    there elsewhere, one replica of a role at a time. exclude leaves a node out for a while, forgive
    ends that. remove forgets one that is away and gone for good.
    """
    if action == "list":
        _list_nodes(call)
        return
    if action not in NODE_ACTIONS:
        hint = " | ".join(NODE_ACTIONS)
        raise CtlError(f"nodes has no action {action!r}", hint=hint, exit_code=USAGE)
    _needs_name("nodes", action, name)
    match action:
        case "add":
            _add_node(call, name, str(options["out"]))
        case "drain":
            deadline = options["timeout"]
            within_s = duration_s(str(deadline), "--timeout") if deadline else 0.0
            is_awaited = not options["no_wait"]
            drain_node(
                call, name, at_once=bool(options["now"]), is_awaited=is_awaited, within_s=within_s
            )
        case "exclude":
            _exclude_node(call, name, options)
        case "remove":
            body = {"lost": bool(options["lost"])}
            node = call.client.call("POST", named_path("nodes", name, action), body=body)
            call.printer_of(_FORMS).line(f"{text(node, 'name')} removed")
        case _:
            _say(call, call.client.call("POST", named_path("nodes", name, action), body={}))


def _say(call: Call, node: Json) -> None:
    call.printer_of(_FORMS).line(f"{text(node, 'name')} {shown_phase(node)}")


def _exclude_node(call: Call, name: str, options: Mapping[str, object]) -> None:
    if not options["lasting"]:
        hint = f"primusctl nodes exclude {name} --for 1h"
        raise CtlError("nodes exclude needs --for TIME", hint=hint, exit_code=USAGE)
    body = {"for": str(options["lasting"]), "reason": str(options["reason"])}
    if options["job"]:
        body["namespace"], body["job"] = call.job(str(options["job"]))
    _say(call, call.client.call("POST", named_path("nodes", name, "exclude"), body=body))


def _list_nodes(call: Call) -> None:
    printer = call.printer_of(_FORMS)
    document = call.client.get("/api/v1/nodes")
    if _print_items(printer, document, "name"):
        return
    header = ["NODE", "PHASE", "CPU", "MEMORY", "GPU", "PORTS", "ATTEMPTS", "LOAD", "AGE"]
    wide = ["OTHERS", "FAULTS", "EXCLUDED UNTIL", "VERSION", "LABELS"] if printer.is_wide else []
    rows = []
    for node in mappings(document, "items"):
        capacity, used = mapping(node, "capacity"), mapping(node, "used")
        busy = count(mapping(node, "usage"), "cpuPercent")
        row: list[object] = [
            text(node, "name"),
            shown_phase(node),
            f"{_cores(used)}/{_cores(capacity)}",
            f"{short_bytes(used.get('memoryBytes'))}/{short_bytes(capacity.get('memoryBytes'))}",
            f"{text(used, 'gpus')}/{text(capacity, 'gpus')}",
            f"{text(used, 'ports')}/{text(capacity, 'ports')}",
            node.get("attempts"),
            "" if busy is None else f"{busy}%",
            printer.age(node.get("since")),
        ]
        if printer.is_wide:
            labels = ",".join(f"{key}={value}" for key, value in mapping(node, "labels").items())
            faults = len(mappings(node, "faults"))
            # That one is over stays in the document, not in the eyes of a person.
            is_ready = text(node, "phase") == "Ready"
            until = "" if is_ready else local_time(node.get("excludedUntil"))
            row += [_others(mapping(node, "load")), faults, until, text(node, "version"), labels]
        rows.append(row)
    printer.table([*header, *wide], rows)


def _others(load: Json) -> str:
    """Return what is used beyond what slots reserve: `1.5 cores, 2.0G`."""
    if not load:
        return ""
    return f"{_cores(load)} cores, {short_bytes(load.get('memoryBytes'))}"


def _cores(amounts: Json) -> str:
    return f"{(count(amounts, 'cpuMilli') or 0) / 1000:g}"


def _add_node(call: Call, name: str, out: str) -> None:
    document = call.client.call("POST", named_path("nodes", name, "add"), body={})
    import json  # noqa: PLC0415 - only here

    content = json.dumps(document, indent=2) + "\n"
    if not out:
        sys.stdout.write(content)
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CtlError(f"{out}: {(error.strerror or '').lower()}", exit_code=USAGE) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    if not call.is_quiet:
        shown, printer = Path(out), call.printer_of(_FORMS)
        printer.line(f"{shown}: start it with: primusd node --bootstrap {shown}")
        printer.line("  (a second node on one host also needs --state-dir and --ports of its own)")
        heads = document.get("heads")
        if not isinstance(heads, list) or not any(_is_for_others(str(one)) for one in heads):
            sys.stderr.write(
                "note: only this host reaches the daemon; for another one set listen.tcp "
                "and listen.advertise\n"
            )


def _is_for_others(head: str) -> bool:
    """Return whether another host may dial an address of a head."""
    host = urlsplit(head).hostname or ""
    return host not in ("", "localhost", "::1") and not host.startswith("127.")


@click.command("strays", cls=Verb)
@click.argument("action", default="list", metavar=f"[{'|'.join(STRAY_ACTIONS)}]")
@click.argument("stray", default="", metavar="[ID]")
@shared_options
@pass_call
def strays(call: Call, action: str, stray: str) -> None:
    """List processes that this daemon does not know; it never ends one by itself."""
    printer = call.printer_of(_FORMS)
    match action:
        case "list":
            document = call.client.get("/api/v1/strays")
            if not _print_items(printer, document, "id"):
                header = ("ID", "NODE", "ALIVE", "LAUNCHER", "WHY")
                rows = [
                    [one.get(key) for key in ("id", "node", "alive", "launcher", "reason")]
                    for one in mappings(document, "items")
                ]
                printer.table(header, rows)
        case "adopt" | "stop":
            path = f"/api/v1/strays/{_needs_name('strays', action, stray)}:{action}"
            found = call.client.call("POST", path, body={})
            done = "stopped" if action == "stop" else "taken in when it calls next, within a minute"
            printer.line(f"{text(found, 'id')} {done}")
        case _:
            hint = " | ".join(STRAY_ACTIONS)
            raise CtlError(f"strays has no action {action!r}", hint=hint, exit_code=USAGE)


COMMANDS = {"nodes": nodes, "strays": strays}
