"""What an original role does when a replica ends badly, as budgets."""

from primusd.compat.draft import Draft
from primusd.compat.original import Fields, Path

# The original's counters know no window; ten years are none either.
WITHIN = "3650d"
_RESTARTS = ("ON_FAILURE", "NEVER", "ALWAYS")
_POLICIES = ("FAIL_APP", "FAIL_ATTEMPT", "NONE")


def convert_failover(role: Fields, path: Path, draft: Draft) -> bool:
    """Put the budgets of a role; return whether the whole is to be tried again when one is used up.

    The original counts every end of one replica and acts at the n-th, so n - 1 are forgiven.
    Without a policy nothing is started again.
    """
    failover = role.message("failover")
    policy = _policy(failover)
    source = policy.path if policy else role.path
    restarts, again = 0, False
    if policy is not None:
        restarts, again = _restarts(policy, role, path, draft)
        policy.report_rest()
    count = max(1, role.number("num"))
    # Where each replica has a count of its own, that of all never comes first.
    in_all = (restarts + 1) * count if restarts and count > 1 else restarts
    budgets = {"application": in_all, "infrastructure": in_all, "within": WITHIN}
    if in_all > restarts:
        budgets["replica"] = restarts
    for field, value in budgets.items():
        draft.put((*path, "budgets", field), value, source)
    failover.report_rest()
    return again


def convert_attempts(job: Fields, draft: Draft, *, is_asked: bool) -> None:
    """Put how often the whole job begins anew, where a role's policy asks for it."""
    if not is_asked or not job.has("maxAppAttempts"):
        return
    reruns = max(job.number("maxAppAttempts") - 1, 0)
    if reruns:
        draft.put(("reruns",), reruns, job.at("maxAppAttempts"))


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


def _restarts(policy: Fields, role: Fields, path: Path, draft: Draft) -> tuple[int, bool]:
    """Return how many ends of one replica are forgiven, and whether the job begins anew then."""
    kind = policy.enum("restartType", _RESTARTS)
    tolerated = max(policy.number("maxFailureTimes") - 1, 0)
    action = policy.enum("maxFailurePolicy", _POLICIES)
    if kind == "NEVER":
        return 0, False
    if kind == "ALWAYS":
        _restart_what_completed(policy, path, draft)
    is_partial = role.number("successPercent") not in (0, 100)
    if action == "NONE" and not is_partial:
        policy.report.note(
            policy.at("maxFailurePolicy"),
            "NONE fails the job here too, once a replica of the role can no longer be had",
        )
    if action != "NONE" and is_partial:
        policy.report.note(
            policy.at("maxFailurePolicy"),
            f"{action} ends the whole there when one replica is used up; here the others go on "
            "while the role can have its successPercent",
        )
    return tolerated, action == "FAIL_ATTEMPT"


def _restart_what_completed(policy: Fields, path: Path, draft: Draft) -> None:
    """Add the rule that a replica of a role which ended with code 0 runs again too."""
    rule = {"cause": "completed", "role": str(path[1]), "budget": "application"}
    rules = [*draft.document.get("failure", []), rule]
    draft.put(("failure",), rules, policy.at("restartType"))
    for field in rule:
        draft.sources["failure", len(rules) - 1, field] = policy.at("restartType")
