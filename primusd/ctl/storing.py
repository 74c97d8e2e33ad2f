"""store: its figures, a backup of it, and to put one back or to move it while no daemon runs."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json
from primusd.ctl.documents import count, mappings, text
from primusd.ctl.failures import FAILED, OK, USAGE, CtlError
from primusd.ctl.output import Printer, grouped, short_bytes

if TYPE_CHECKING:
    from primusd.ctl.storing_offline import Places

STORE = "/api/v1/store"
ACTIONS = ("status", "backup", "restore", "move")
_FORMS = ("table", "json", "yaml")


@click.command("store", cls=Verb)
@click.argument("action", default="status", metavar=f"[{'|'.join(ACTIONS)}]")
@click.argument("file", default="", metavar="[FILE]")
@click.option("--to", default="", metavar="STORE", help="embedded, or etcd://host1,host2.")
@click.option("--from", "source", default="", metavar="STORE", help="Where it is moved from.")
@click.option("--replace", is_flag=True, help="Put it in the place of what is there, for good.")
@click.option("--offline", is_flag=True, help="backup: read the store itself; no daemon runs.")
@click.option("--config", default="", metavar="FILE", help="Configuration of the daemon.")
@click.option("--state-dir", default="", metavar="DIR", help="Of the daemon.")
@click.option("--cluster", default="", metavar="NAME", help="Of the daemon.")
@shared_options
@pass_call
def store(
    call: Call,
    action: str,
    file: str,
    *,
    to: str,
    source: str,
    replace: bool,
    offline: bool,
    config: str,
    state_dir: str,
    cluster: str,
) -> int:
    """Show the store of the daemon, or copy all that it holds.

    backup FILE: into a file, while the daemon runs (with --offline, while it does not).
    restore FILE: out of it, into the store that the configuration names, or --to.
    move --to STORE: from one store to another. For these two no daemon of the cluster may run;
    trainers run on, and the next start takes them up again.
    """
    if action not in ACTIONS:
        raise CtlError(f"store has no action {action!r}", hint=" | ".join(ACTIONS), exit_code=USAGE)
    _check_words(action, file, to)
    printer = call.printer_of(_FORMS if action == "status" else ("table",))
    if action == "status":
        return _show(call, printer)
    if action == "backup" and not offline:
        return _backup(printer, Path(file), call.client.parts(f"{STORE}/backup"))
    # Loaded for these only: the daemon's own code, with its stores.
    from primusd.ctl import storing_offline  # noqa: PLC0415 - see above.

    places: Places = storing_offline.Places(
        environ=call.environ, config=config, state_dir=state_dir, cluster=cluster
    )
    match action:
        case "backup":
            return _backup(printer, Path(file), storing_offline.backup(places))
        case "restore":
            lines = storing_offline.restore(places, Path(file), to=to, may_replace=replace)
        case _:
            lines = storing_offline.move(places, to=to, source=source, may_replace=replace)
    for line in lines:
        printer.line(line)
    return OK


def _check_words(action: str, file: str, to: str) -> None:
    """See that an action has what it needs, and nothing that it has no use for.

    Raises:
        CtlError: It has not.
    """
    if action in ("backup", "restore") and not file:
        raise CtlError(f"store {action} needs a FILE", hint=f"store {action} FILE", exit_code=USAGE)
    if action in ("status", "move") and file:
        raise CtlError(f"store {action} takes no FILE, got {file!r}", exit_code=USAGE)
    if action == "move" and not to:
        hint = "store move --to etcd://host1,host2, or --to embedded"
        raise CtlError("store move needs --to", hint=hint, exit_code=USAGE)
    if action in ("status", "backup") and to:
        raise CtlError(f"store {action} takes no --to", exit_code=USAGE)


def _show(call: Call, printer: Printer) -> int:
    found = call.client.get(STORE)
    if printer.form != "table":
        printer.document(found)
        return OK
    printer.line(f"{text(found, 'store')} store of cluster {text(found, 'cluster')!r}")
    for name, said in _lines(found):
        printer.line(f"  {name:<11}{said}")
    return OK


def _lines(found: Json) -> Iterable[tuple[str, str]]:
    """Yield name and words of each line."""
    yield "place", text(found, "place")
    yield "cluster id", text(found, "clusterId")
    yield "schema", text(found, "schema")
    yield "term", text(found, "term")
    yield "revision", f"{text(found, 'revision')}{_etcd_revision(found)}"
    size, quota = short_bytes(count(found, "bytes")), count(found, "quotaBytes")
    if quota is None:
        free = count(found, "freeBytes")
        yield "size", size if free is None else f"{size}, {short_bytes(free)} free on its disk"
    else:
        yield (
            "size",
            f"{size} of {short_bytes(quota)}, {text(found, 'usedPercent')} % of its quota; "
            f"no new job from {text(found, 'stopPercent')} % on",
        )
    for server in mappings(found, "servers"):
        yield "server", _server(server)
    if refuses := text(found, "refuses"):
        yield "refuses", refuses


def _etcd_revision(found: Json) -> str:
    newest, compacted = count(found, "etcdRevision"), count(found, "compactedRevision")
    if newest is None:
        return ""
    kept = "keeps all" if compacted is None else f"keeps what is after {grouped(compacted)}"
    return f" (etcd is at {grouped(newest)}, {kept})"


def _server(server: Json) -> str:
    if error := text(server, "error"):
        return f"{text(server, 'url')}  {error}"
    used = count(server, "bytesInUse")
    size = short_bytes(count(server, "bytes"))
    said = [text(server, "version"), size if used is None else f"{size}, {short_bytes(used)} used"]
    if server.get("leads"):
        said.append("leads the servers")
    return f"{text(server, 'url')}  {'  '.join(said)}"


def _backup(printer: Printer, path: Path, parts: Iterable[bytes]) -> int:
    """Write a backup beside its place, and put it there once it is whole."""
    from primusd.errors import PrimusdError  # noqa: PLC0415 - only here.
    from primusd.state.backup import check_digest, read_about  # noqa: PLC0415 - only here.

    incoming = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            incoming = Path(file.name)
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        data = incoming.read_bytes()
        about, _ = read_about(data, name=str(path))
        check_digest(data, name=str(path))
        incoming.rename(path)
    except OSError as error:
        raise CtlError(
            f"the backup cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that takes it; nothing is left there",
            exit_code=FAILED,
        ) from error
    except PrimusdError as error:
        raise CtlError(error.message, hint=error.hint) from error
    finally:
        if incoming is not None:
            incoming.unlink(missing_ok=True)
    printer.line(f"{path} {short_bytes(len(data))}, revision {about.revision}")
    printer.line("  it has the cluster's secret: keep it where nobody else reads it")
    return OK


COMMANDS = {"store": store}
"""The verb of this module."""
