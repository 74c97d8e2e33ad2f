"""leader: who leads, and to let another one."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.documents import mapping, mappings, text
from primusd.ctl.failures import OK, USAGE, CtlError

CLUSTER = "/api/v1/cluster"
ACTIONS = ("show", "resign")
NOT_READY = ", but cannot take over yet"
_FORMS = ("table", "json", "yaml")


@click.command("leader", cls=Verb)
@click.argument("action", default="show", metavar=f"[{'|'.join(ACTIONS)}]")
@shared_options
@pass_call
def leader(call: Call, action: str) -> int:
    """Show who leads and who stands by, as every head knows; or let another head lead, at once.

    resign is refused where no other head stands by that could take over at once.
    """
    if action not in ACTIONS:
        hint = " | ".join(ACTIONS)
        raise CtlError(f"leader has no action {action!r}", hint=hint, exit_code=USAGE)
    printer = call.printer_of(_FORMS)
    if action == "resign":
        found = call.client.call("POST", f"{CLUSTER}:resign", body={})
    else:
        found = call.client.get(CLUSTER)
    if printer.form != "table":
        printer.document(found)
        return OK
    leads = text(found, "leader")
    if action == "resign":
        printer.line(f"{leads} lets another head lead")
        return OK
    store = text(mapping(found, "store"), "kind")
    told = f"{leads} leads, term {text(found, 'term')}" if leads else "nobody leads"
    printer.line(f"{told} ({store} store)")
    for member in mappings(found, "members"):
        name, url = text(member, "name"), text(member, "url")
        if name != leads:
            where = f" at {url}" if url else ""
            printer.line(f"{name} stands by{where}{'' if member.get('ready', True) else NOT_READY}")
    return OK


COMMANDS = {"leader": leader}
