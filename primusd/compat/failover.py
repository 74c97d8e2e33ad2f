"""What an original role does when a replica ends badly, as budgets."""

from primusd.compat.draft import Draft
from primusd.compat.original import Fields, Path

# The original's counters know no window; ten years are none either.
WITHIN = "3650d"
_RESTARTS = ("ON_FAILURE", "NEVER", "ALWAYS")
_POLICIES = ("FAIL_APP", "FAIL_ATTEMPT", "NONE")


def convert_failover(role: Fields, path: Path, draft: Draft) -> None:
    """Put the budgets of a role.

    The original counts every end of one replica and acts at the n-th, so n - 1 are forgiven; a
    role's budget here is for all its replicas. Without a policy nothing is started again.
    """
    failover = role.message("failover")
    policy = _policy(failover)
    source = policy.path if policy else role.path
    restarts = 0
    if policy is not None:
        restarts = _restarts(policy, role, path)
        policy.report_rest()
    budgets = {"application": restarts, "infrastructure": restarts, "within": WITHIN}
    for field, value in budgets.items():
        draft.put((*path, "budgets", field), value, source)
    failover.report_rest()


def _policy(failover: Fields) -> Fields | None:
    """Return the policy, also where an example of the original has it one level too deep."""
    for name in ("commonFailoverPolicy", "hybridDeploymentFailoverPolicy"):
        if failover.has(name):
            outer = failover.message(name)
            if not outer.has("commonFailover"):
                return outer
            if name == "commonFailoverPolicy":
                outer.report.note(
                    outer.at("commonFailover"), "stands one level too deep; it is understood"
                )
            inner = outer.message("commonFailover")
            outer.report_rest()
            return inner
    return None


def _restarts(policy: Fields, role: Fields, path: Path) -> int:
    kind = policy.enum("restartType", _RESTARTS)
    tolerated = max(policy.number("maxFailureTimes") - 1, 0)
    action = policy.enum("maxFailurePolicy", _POLICIES)
    replicas = role.number("num")
    if kind == "NEVER":
        return 0
    if kind == "ALWAYS":
        policy.report.note(
            policy.at("restartType"), "ALWAYS is ON_FAILURE here: code 0 is never started again"
        )
    if action == "NONE" and role.number("successPercent") in (0, 100):
        policy.report.note(
            policy.at("maxFailurePolicy"),
            "NONE fails the job here too, once a replica of the role can no longer be had",
        )
    if replicas > 1 and tolerated:
        policy.report.note(
            policy.at("maxFailureTimes"),
            f"counts for each replica there; here {path[1]} has {tolerated * replicas} restarts "
            "in all",
        )
    return tolerated * replicas
