"""Changes to the spec of a job that lives, and the difference between two specs."""

from collections.abc import Mapping

from primusd.errors import ImmutableFieldError, MalformedError, Problem, SpecError
from primusd.job.spec import JobSpec, RoleSpec
from primusd.jobfile.checking import ParseContext
from primusd.jobfile.document import DEPTH_MAX, Path, leaves, show_path, show_value
from primusd.jobfile.parsing import Parsed, parse_document
from primusd.jobfile.rendering import render
from primusd.jobfile.section import is_mapping

# Patterns of paths; what is below one is mutable too.
MUTABLE = ("priority", "budgets", "deadline", "maxReplicaHours", "labels", "roles.*.budgets")
SCALED = "roles.*.replicas"
"""A number of replicas is no change of the spec: a role is scaled within its bounds."""


def apply_patch(spec: JobSpec, merge_patch: object) -> Parsed:
    """Return the spec with a merge patch applied to its job file's form.

    Args:
        spec: Of a job that lives.
        merge_patch: Fields of the spec, or a Job document with some in `spec`; null takes a
            field back to its default.

    Raises:
        MalformedError: The patch is no mapping.
        ImmutableFieldError: It changes what cannot change; `errors` names every such field.
        SpecError: What would come of it is wrong.

    Source: RFC 7396.
    """
    patch = merge_patch
    if is_mapping(patch) and is_mapping(patch.get("spec")):
        patch = patch["spec"]
    if not is_mapping(patch):
        raise MalformedError("a patch is a mapping of fields of the spec, as {priority: 60}")
    before = render(spec)
    context = ParseContext(base_dir="/", namespace=spec.namespace, launcher=spec.launcher)
    parsed = parse_document(_merged(before, patch, 0), filename="patch", context=context)
    changed = _changed(before, render(parsed.spec))
    fixed = [path for path in changed if not _is_below(path, MUTABLE)]
    if fixed:
        can = (*MUTABLE, SCALED)
        raise ImmutableFieldError(
            f"{show_path(fixed[0])} cannot change while the job lives; what can: {', '.join(can)}",
            hint="submit it as another job",
            errors=tuple(Problem(show_path(path), allowed=can) for path in fixed),
        )
    return parsed


def split_sizes(spec: JobSpec, patch: object) -> tuple[Mapping[str, int], object]:
    """Return the sizes that a merge patch gives to roles, and the rest of the patch.

    Args:
        spec: Of a job that lives.
        patch: Fields of the spec.

    Raises:
        SpecError: A size is out of its role's bounds.
    """
    roles = patch.get("roles") if is_mapping(patch) else None
    if not is_mapping(patch) or not is_mapping(roles):
        return {}, patch
    sizes: dict[str, int] = {}
    rest: dict[str, object] = {}
    for name, role in roles.items():
        rest[name] = role
        size = role.get("replicas") if is_mapping(role) else None
        if name in spec.roles and isinstance(size, int) and is_mapping(role):
            sizes[name] = size
            rest[name] = {key: value for key, value in role.items() if key != "replicas"}
    check_sizes(spec, sizes)
    return sizes, {**patch, "roles": rest}


def check_sizes(spec: JobSpec, sizes: Mapping[str, int]) -> None:
    """Compare numbers of replicas with the bounds of their roles, which the job has.

    Raises:
        SpecError: One is out of them; `errors` names every such role.
    """
    wrong = tuple(
        _size_problem(spec.roles[role], size)
        for role, size in sizes.items()
        if isinstance(size, bool)
        or not spec.roles[role].minimum <= size <= spec.roles[role].replicas
    )
    if wrong:
        first = wrong[0]
        raise SpecError(
            f"{first.path} is {first.found}, may be {first.allowed}", hint=first.hint, errors=wrong
        )


def _size_problem(role: RoleSpec, size: int) -> Problem:
    path = f"roles.{role.name}.replicas"
    if role.minimum == role.replicas:
        hint = "a role that can be scaled is submitted with bounds: replicas: {min: 2, max: 8}"
        return Problem(path, found=str(size), allowed=f"{role.replicas} only", hint=hint)
    allowed = f"{role.minimum} to {role.replicas}"
    return Problem(path, found=str(size), allowed=allowed, hint="its bounds are the job file's")


def diff(old: JobSpec, new: JobSpec) -> list[dict[str, object]]:
    """Return each field that differs as `{path, from, to}`; what is absent has no key."""
    before, after = dict(_values(render(old))), dict(_values(render(new)))
    changes: list[dict[str, object]] = []
    for path in dict.fromkeys((*before, *after)):
        if path in before and path in after and before[path] == after[path]:
            continue
        change: dict[str, object] = {"path": show_path(path)}
        if path in before:
            change["from"] = before[path]
        if path in after:
            change["to"] = after[path]
        changes.append(change)
    return changes


def _values(value: object, path: Path = ()) -> list[tuple[Path, object]]:
    """Return the values of mappings; a list counts as one value, so that it shows whole."""
    if not is_mapping(value):
        return [(path, value)]
    return [pair for key, inner in value.items() for pair in _values(inner, (*path, key))]


def _merged(target: object, patch: Mapping[str, object], depth: int) -> dict[str, object]:
    if depth > DEPTH_MAX:
        raise MalformedError(f"the patch is nested deeper than {DEPTH_MAX} levels")
    merged = dict(target) if is_mapping(target) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif is_mapping(value):
            merged[key] = _merged(merged.get(key), value, depth + 1)
        else:
            merged[key] = value
    return merged


def _changed(before: object, after: object) -> list[Path]:
    old, new = dict(leaves(before)), dict(leaves(after))
    paths = dict.fromkeys((*old, *new))
    return [path for path in paths if show_value(old.get(path)) != show_value(new.get(path))]


def _is_below(path: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the patterns is a path's beginning."""
    for pattern in patterns:
        parts = pattern.split(".")
        begins = zip(parts, path, strict=False)
        if len(path) >= len(parts) and all(part in ("*", here) for part, here in begins):
            return True
    return False
