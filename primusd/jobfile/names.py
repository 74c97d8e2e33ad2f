"""Names: what a label is, and how long a name may be for everything derived from it."""

from collections.abc import Iterable

from msgspec import Struct

from primusd.job.ids import is_uid
from primusd.job.labels import LABEL_MAX, is_label, nearest_label
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.section import Findings

# A pod is a host name; its attempts are counted with up to five digits.
ATTEMPT_MAX = 99_999
PORT_NAME_MAX = 15
LABEL_ALLOWED = "lower-case letters, digits and dashes, a letter or digit first and last"


class Derived(Struct, frozen=True):
    """A kind of name that a launcher makes from those of a job and a role."""

    launcher: str
    what: str
    form: str
    limit: int

    def longest(self, job: str, role: str, replicas: int) -> str:
        """Return the longest name of this kind that a role can come to."""
        return self.form.format(job=job, role=role, index=replicas - 1, attempt=ATTEMPT_MAX)


# A job may move to another launcher, so the names of all of them count at submit.
DERIVED = (
    Derived("kubernetes", "pod", "{job}-{role}-{index}-a{attempt}", 63),
    Derived("kubernetes", "service", "{job}", 63),
    Derived("kubernetes", "owner object", "primus-{job}", 253),
    Derived("kubernetes", "host name", "{role}-{index}", 63),
    Derived("yarn", "application name", "{job}", 256),
    Derived("local", "folder", "{role}-{index}", 255),
)

_OF_JOBS = tuple(one for one in DERIVED if "{role}" not in one.form)


def check_label(
    findings: Findings, path: Path, name: str, *, limit: int = LABEL_MAX, of_key: bool = False
) -> bool:
    """Return whether a name is a label of at most so many characters, or note why not."""
    if not is_label(name):
        near = nearest_label(name)[:limit].rstrip("-")
        hint = f"for example {near}" if near else ""
        findings.add(
            path,
            found=show_value(name),
            allowed=f"a name of {LABEL_ALLOWED}",
            hint=hint,
            of_key=of_key,
        )
        return False
    if len(name) > limit:
        findings.add(
            path,
            found=f"{show_value(name)} ({len(name)} characters)",
            allowed=f"at most {limit} characters",
            hint=f"{len(name) - limit} too many, for example {name[:limit].rstrip('-')}",
            of_key=of_key,
        )
        return False
    return True


def check_job_name(findings: Findings, name: str) -> bool:
    """Return whether a job may be called so, whatever its roles are."""
    if is_uid(name) and name.startswith("0"):
        findings.add(
            ("name",),
            found=name,
            allowed="a name that cannot be taken for a job's uid",
            hint=f"for example job-{name}",
        )
        return False
    # Its length is judged with the roles', by what is derived from both.
    return check_label(findings, ("name",), name, limit=10 * LABEL_MAX)


def check_derived(findings: Findings, job: str, roles: Iterable[tuple[str, int]]) -> None:
    """Note the name that makes the longest derived name too long, with limit, excess and a way out.

    Args:
        findings: Where to.
        job: A label.
        roles: Name and replicas of each role.
    """
    worst: tuple[int, Derived, str, str] | None = None
    # Where no role has a name to go by, the job's own still has a limit.
    for role, replicas in tuple(roles) or (("", 1),):
        for derived in DERIVED if role else _OF_JOBS:
            longest = derived.longest(job, role, replicas)
            excess = len(longest) - derived.limit
            if excess > 0 and (worst is None or excess > worst[0]):
                worst = (excess, derived, role, longest)
    if worst is None:
        return
    excess, derived, role, longest = worst
    is_roles = "{job}" not in derived.form or len(role) > len(job)
    path: Path = ("roles", role) if is_roles else ("name",)
    name = role if is_roles else job
    kept = name[: len(name) - excess].rstrip("-") if len(name) > excess else ""
    hint = f"shorten it by {excess}" + (f", for example {kept}" if kept else "")
    findings.add(
        path,
        found=f"{show_value(name)} ({len(name)} characters)",
        allowed=f"names whose longest {derived.what} on {derived.launcher} has at most "
        f"{derived.limit} characters; {longest} has {len(longest)}",
        hint=hint,
        of_key=is_roles,
    )
