"""The scheduling policy of an original job file, as ours: who starts when."""

from msgspec import Struct

from primusd.compat.draft import Draft
from primusd.compat.original import Fields, Path

TYPES = ("GANG", "DYNAMIC")


class Order(Struct, frozen=True):
    """A role that starts when it is its turn."""

    role: str
    """As the original calls it."""
    kind: str
    """One of TYPES."""
    source: Path


class Policy(Struct, frozen=True):
    """What `schedulePolicy` says."""

    kind: str = "gang"
    """`gang`, `dynamic`, `order` or `pony`."""
    source: Path = ()
    orders: tuple[Order, ...] = ()
    first: str = ""
    """Of `pony`: the role that starts before all others."""


def read_policy(job: Fields) -> Policy:
    """Return the policy; the time-outs of one do nothing in the original, and that is said."""
    scheduler = job.message("scheduler")
    if scheduler.text("command").strip():
        scheduler.report.refuse(
            scheduler.at("command"), "this build runs no program in place of the roles"
        )
    policy = scheduler.message("schedulePolicy")
    found = Policy()
    for name, kind in (
        ("dynamicPolicy", "dynamic"),
        ("orderPolicy", "order"),
        ("ponyPolicy", "pony"),
    ):
        if policy.has(name):
            inner = policy.message(name)
            found = Policy(kind, policy.at(name), _orders(inner), inner.text("psRoleName"))
            inner.report_rest()
    policy.message("gangPolicy").report_rest()
    policy.report_rest()
    scheduler.report_rest()
    return found


def _orders(policy: Fields) -> tuple[Order, ...]:
    found = []
    for one in policy.messages("rolePolicy"):
        found.append(Order(one.text("roleName"), one.enum("scheduleType", TYPES), one.path))
        one.report_rest()
    return tuple(found)


def is_left_out(policy: Policy, role: str) -> bool:
    """Return whether the original would never create a role: its order does not name it."""
    return policy.kind == "order" and role not in {one.role for one in policy.orders}


def put_replicas(role: Fields, path: Path, policy: Policy, draft: Draft) -> None:
    """Put how many replicas a role has, and how many have to be there before the first starts."""
    count = role.number("num")
    kind = {"dynamic": "DYNAMIC", "order": "GANG"}.get(policy.kind, "")
    name = role.text("roleName")
    for one in policy.orders:
        kind = one.kind if one.role == name else kind
    if count == 1 or not kind:
        draft.put((*path, "replicas"), count, role.at("num"))
        return
    minimum, source = count, role.at("num")
    if kind == "DYNAMIC":
        minimum, source = max(1, role.number("minNum")), role.at("minNum")
    draft.put((*path, "replicas", "min"), min(minimum, count), source)
    draft.put((*path, "replicas", "max"), count, role.at("num"))
    draft.sources[*path, "replicas"] = role.at("num")


def put_schedule(policy: Policy, roles: dict[str, Fields], draft: Draft) -> None:
    """Put the policy, and who waits for whom.

    Args:
        policy: As read.
        roles: By their names here, as the original has them.
        draft: Where to.
    """
    names = {fields.text("roleName"): name for name, fields in roles.items()}
    ours = "gang" if policy.kind == "gang" else "dynamic"
    draft.put(("schedule", "policy"), ours, policy.source)
    before = ""
    for one in policy.orders:
        if one.role not in names:
            continue
        name = names[one.role]
        if before and before != name:
            draft.put(("roles", name, "dependsOn", before), "started", one.source)
        before = name
    first = names.get(policy.first, "") if policy.kind == "pony" else ""
    for name in roles if first else ():
        if name != first:
            draft.put(("roles", name, "dependsOn", first), "started", policy.source)
