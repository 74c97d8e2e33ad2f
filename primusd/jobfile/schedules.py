"""The `schedule` part of a job file, and `dependsOn` between its roles: who starts when."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from primusd.job.counts import REPLACE_MS_MIN
from primusd.job.spec import REPLICAS_MAX, JobSpec, RoleSpec, waits_of
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.section import Findings, Section, is_mapping, nearest
from primusd.units import format_duration

FIELDS = ("policy", "roles", "gate", "step", "placeTimeout", "readyTimeout", "replaceAfter")
DEEPER = (
    "schedule.policy",
    "schedule.gate",
    "schedule.step",
    "schedule.placeTimeout",
    "schedule.readyTimeout",
    "schedule.replaceAfter",
)
POLICIES = ("gang", "ordered", "dynamic")
GATES = ("started", "ready", "completed")
NEVER = -1


class Schedule(Struct, frozen=True):
    """What `schedule` says, with its defaults."""

    policy: str = "dynamic"
    roles: tuple[str, ...] = ()
    gate: str = "ready"
    step: int = 0
    place_timeout_ms: int = 600_000
    ready_timeout_ms: int = 300_000
    replace_after_ms: int = 300_000


def read_schedule(section: Section, roles: Mapping[str, RoleSpec], framework: str) -> Schedule:
    """Return the schedule of a job.

    A framework connects all of its replicas, so they start together unless the file says otherwise;
    without one each starts as it comes.
    """
    default = Schedule(policy="gang" if framework != "none" else "dynamic")
    if not section.has("schedule"):
        return default
    found = Section(section.findings, section.at("schedule"), section.raw("schedule"), FIELDS)
    names = found.texts("roles")
    for index, name in enumerate(names):
        _check_name(section.findings, (*found.at("roles"), index), name, roles)
    policy = found.choice("policy", POLICIES, "gang" if names else default.policy)
    if policy == found.raw("policy") or not found.has("policy"):
        _check_policy(found, policy)
    return Schedule(
        policy,
        names,
        found.choice("gate", GATES, default.gate),
        found.count("step", default.step, low=1, high=REPLICAS_MAX),
        found.duration_ms("placeTimeout", default.place_timeout_ms, zero=False),
        found.duration_ms("readyTimeout", default.ready_timeout_ms, zero=False),
        _replace_after_ms(found, default.replace_after_ms),
    )


def _replace_after_ms(section: Section, default: int) -> int:
    """Return how long after an end that nobody saw another attempt begins; -1 never."""
    if section.raw("replaceAfter") == "never":
        return NEVER
    found = section.duration_ms("replaceAfter", default)
    if found < REPLACE_MS_MIN:
        least = format_duration(REPLACE_MS_MIN)
        section.findings.warn(
            section.at("replaceAfter"),
            f"counts as {least}: until then it may be that the attempt before still ends",
        )
    return found


def _check_policy(section: Section, policy: str) -> None:
    """Note the fields that belong to another policy."""
    for key, owner in (("roles", "gang"), ("gate", "ordered"), ("step", "ordered")):
        if section.has(key) and policy != owner:
            section.findings.add(
                section.at(key),
                found=show_value(section.raw(key)),
                hint=f"it belongs to the policy {owner}, and this job's is {policy}",
            )


def _check_name(findings: Findings, path: Path, name: str, roles: Mapping[str, RoleSpec]) -> bool:
    if name in roles:
        return True
    findings.add(path, found=show_value(name), allowed=tuple(roles), hint=nearest(name, roles))
    return False


def read_depends_on(section: Section) -> dict[str, str]:
    """Return the roles that a role waits for, and how far each has to come."""
    if not section.has("dependsOn"):
        return {}
    value = section.raw("dependsOn")
    if not is_mapping(value):
        hint = f"write {{{value}: started}}" if isinstance(value, str) and value else ""
        section.wrong("dependsOn", "a mapping of roles to started, ready or completed", hint)
        return {}
    waits = Section(section.findings, section.at("dependsOn"), value, tuple(value))
    return {name: waits.choice(name, GATES, "started") for name in value}


def check_schedule(findings: Findings, spec: JobSpec) -> None:
    """Note the orders of roles that can never come about."""
    is_known = True
    for role in spec.roles.values():
        for name in role.depends_on:
            path: Path = ("roles", role.name, "dependsOn", name)
            is_known &= _check_name(findings, path, name, spec.roles)
    if not is_known or not spec.roles:
        return
    if cycle := _cycle(spec):
        findings.add(
            ("roles", cycle[0], "dependsOn"),
            found=" waits for ".join(cycle),
            hint="none of them could ever start; take out one of these waits",
        )
        return
    for role in spec.roles.values():
        _check_waits(findings, spec, role)
    _check_step(findings, spec)


def _cycle(spec: JobSpec) -> tuple[str, ...]:
    """Return the roles of a circle, the first one again at its end; empty: there is none."""
    done: set[str] = set()
    for first in spec.roles:
        found = _walk(spec, first, done)
        if found:
            return found
    return ()


def _walk(spec: JobSpec, first: str, done: set[str]) -> tuple[str, ...]:
    """Return the circle that the waits of a role lead into; roles without one are done."""
    stack = [(first, iter(waits_of(spec, first)))]
    while stack:
        name, waits = stack[-1]
        following = next(waits, None)
        if following is None:
            done.add(name)
            stack.pop()
        elif any(following == one for one, _ in stack):
            names = [one for one, _ in stack]
            return (*names[names.index(following) :], following)
        elif following not in done:
            stack.append((following, iter(waits_of(spec, following))))
    return ()


def _check_waits(findings: Findings, spec: JobSpec, role: RoleSpec) -> None:
    gang = (spec.gang_roles or tuple(spec.roles)) if spec.policy == "gang" else ()
    for name, gate in waits_of(spec, role.name).items():
        if gate != "completed":
            continue
        path = _path(role, name)
        if spec.roles[name].success.kind == "never":
            findings.add(
                path,
                found=f"{role.name} waits for {name} to complete",
                hint=f"{name} has success: never, so it never completes; "
                "wait for it to be started or ready",
            )
        elif role.name in gang and name in gang:
            findings.add(
                path,
                found=f"{role.name} waits for {name} to complete",
                hint=f"both are of one gang, which runs together; leave {name} out of it with "
                "schedule.roles, or take the policy ordered",
            )
    voters = {one.name for one in spec.roles.values() if one.success.kind != "never"}
    waits = waits_of(spec, role.name).items()
    ended = {name for name, gate in waits if gate == "completed"}
    if role.success.kind == "never" and not role.drain_ms and ended and voters <= ended:
        findings.add(
            _path(role, sorted(ended)[0]),
            found=f"{role.name} waits for {' and '.join(sorted(ended))} to complete",
            hint=f"then the job is over, and {role.name} never starts; "
            f"give {role.name} success: all, or a drain, as drain: 15m",
        )


def _path(role: RoleSpec, name: str) -> Path:
    """Return where it is written that a role waits for another."""
    if name in role.depends_on:
        return ("roles", role.name, "dependsOn", name)
    return ("schedule", "gate")


def _check_step(findings: Findings, spec: JobSpec) -> None:
    """Note the steps that would leave a synchronous cluster waiting for itself."""
    if not spec.step or spec.framework == "none" or spec.gate == "started":
        return
    if any(role.replicas > spec.step for role in spec.roles.values()):
        findings.add(
            ("schedule", "step"),
            found=f"step {spec.step} with gate {spec.gate}",
            allowed="gate: started, or no step",
            hint=f"replicas of {spec.framework} wait for each other before they are {spec.gate}",
        )


def start_rules(spec: JobSpec) -> list[str]:
    """Return who starts when, in words, in the order in which they start."""
    return [_rule(spec, spec.roles[name]) for name in _in_order(spec)]


def _in_order(spec: JobSpec) -> Iterator[str]:
    """Yield the roles, each after those that it waits for."""
    left = dict.fromkeys(spec.roles)
    while left:
        free = [name for name in left if not any(one in left for one in waits_of(spec, name))]
        for name in free or list(left):
            yield name
            del left[name]


def _rule(spec: JobSpec, role: RoleSpec) -> str:
    gang = (spec.gang_roles or tuple(spec.roles)) if spec.policy == "gang" else ()
    waits = waits_of(spec, role.name)
    after = " and ".join(f"{name} {_HAS[gate]}" for name, gate in waits.items())
    when = f", once {after}" if after else ""
    if role.name in gang:
        others = [name for name in gang if name != role.name]
        count = _count(role)
        if not others:
            how = f"{count} together" if count else "as soon as it is there"
            return f"{role.name}: {how}{when}"
        sizes = f"{count}, " if count else ""
        return f"{role.name}: {sizes}together with {_and(others)}{when}"
    if spec.step and role.replicas > spec.step:
        how = "one by one" if spec.step == 1 else f"{spec.step} at a time"
        return f"{role.name}: {how}, each after those before {_HAVE[spec.gate]}{when}"
    if role.replicas == 1:
        return f"{role.name}: as soon as it is there{when}"
    if role.has_minimum or role.minimum < role.replicas:
        return f"{role.name}: each as it comes, from {role.minimum} on{when}"
    return f"{role.name}: each as it comes{when}"


_HAS = {"started": "has started", "ready": "is ready", "completed": "has completed"}
_HAVE = {"started": "have started", "ready": "are ready", "completed": "have completed"}


def _count(role: RoleSpec) -> str:
    if role.minimum < role.replicas:
        return f"{role.minimum} to {role.replicas}"
    return f"all {role.replicas}" if role.replicas > 1 else ""


def _and(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1]) if len(words) > 1 else words)
