"""nodes drain: ask for it, and tell how far it is until the node is empty."""

import time
from collections.abc import Mapping

from primusd.ctl.call import Call
from primusd.ctl.client import Json, named_path
from primusd.ctl.documents import mapping, mappings, text
from primusd.ctl.failures import TIMED_OUT, CtlError
from primusd.ctl.waiting import detached

LOOK_EVERY_S = 0.3
_FORMS = ("table", "json", "yaml")
_WORDS: Mapping[str, str] = {"moving": "is moving", "queued": "waits for its turn"}


def drain_node(call: Call, name: str, *, at_once: bool, is_awaited: bool, within_s: float) -> None:
    """Ask for what runs on a node to move elsewhere, and follow that to its end.

    Args:
        call: With the client.
        name: Of the node.
        at_once: Without waiting for places and turns.
        is_awaited: Return when the node is empty, else at once.
        within_s: Wait no longer; 0 without end.

    Raises:
        CtlError: The time passed; the drain goes on.
    """
    printer = call.printer_of(_FORMS)
    path = named_path("nodes", name)
    node = call.client.call("POST", f"{path}:drain", body={"now": at_once})
    end_s = time.monotonic() + within_s
    told: dict[str, str] = {}
    with detached(f"primusctl nodes drain {name}"):
        while True:
            if printer.form == "table" and not call.is_quiet:
                _tell(call, node, told)
            if not is_awaited or mapping(node, "drain").get("done") is not False:
                break
            if within_s and time.monotonic() > end_s:
                left = len(mappings(mapping(node, "drain"), "left"))
                raise CtlError(
                    f"{left} {'replica is' if left == 1 else 'replicas are'} still on {name}; "
                    "the drain goes on",
                    hint=f"primusctl nodes drain {name}, or uncordon it",
                    exit_code=TIMED_OUT,
                )
            time.sleep(LOOK_EVERY_S)
            node = call.client.get(path)
    if printer.form != "table":
        printer.document(node)


def shown_phase(node: Json) -> str:
    """Return a node's phase as people see it: with how far it is emptied."""
    phase, drain = text(node, "phase"), mapping(node, "drain")
    if not drain:
        return phase
    left = len(mappings(drain, "left"))
    return f"{phase} (drained)" if not left else f"{phase} (draining, {left} left)"


def _tell(call: Call, node: Json, told: dict[str, str]) -> None:
    """Print what changed since it was told last, each attempt with what it waits for."""
    printer = call.printer_of(_FORMS)
    now: dict[str, str] = {}
    for one in mappings(mapping(node, "drain"), "left"):
        namespace, job = text(one, "namespace"), text(one, "job")
        name = job if namespace == "default" else f"{namespace}/{job}"
        state = text(one, "state")
        now[f"{name} {text(one, 'replica')}"] = _WORDS.get(state) or text(one, "message")
    for who, words in now.items():
        if told.get(who) != words:
            printer.line(f"{who} {words}")
    for who in sorted(told.keys() - now.keys()):
        printer.line(f"{who} has left")
    if now != told or not told:
        printer.line(f"{text(node, 'name')} {shown_phase(node)}")
    told.clear()
    told.update(now)
