"""The `placement` of a role: which nodes its replicas go to, and beside whom."""

from collections.abc import Mapping

from primusd.admission.placement import Asked, contradictions
from primusd.job.spec import REPLICAS_MAX, Placement, RoleSpec
from primusd.jobfile.document import show_value
from primusd.jobfile.section import Findings, Section, check_text, is_mapping, nearest, quote_hint

FIELDS = ("near", "apart", "maxPerNode", "nodes")
LABELS_MAX = 16


def read_placement(section: Section) -> Placement:
    """Return the placement of a role; whether the roles it names exist is checked later."""
    if not section.has("placement"):
        return Placement()
    found = Section(section.findings, section.at("placement"), section.raw("placement"), FIELDS)
    return Placement(
        max_per_node=found.count("maxPerNode", 0, low=1, high=REPLICAS_MAX),
        near=found.texts("near"),
        apart=found.texts("apart"),
        nodes=_labels(found),
    )


def _labels(section: Section) -> Mapping[str, str]:
    if not section.has("nodes"):
        return {}
    value = section.raw("nodes")
    if not is_mapping(value) or len(value) > LABELS_MAX:
        section.wrong("nodes", f"a mapping of at most {LABELS_MAX} labels to their values")
        return {}
    labels: dict[str, str] = {}
    for key, text in value.items():
        path = (*section.at("nodes"), key)
        if not isinstance(text, str):
            section.findings.add(
                path, found=show_value(text), allowed="a text", hint=quote_hint(text)
            )
        elif check_text(section.findings, path, text):
            labels[key] = text
    return labels


def check_placements(findings: Findings, roles: Mapping[str, RoleSpec]) -> None:
    """Note rules about roles that do not exist, and rules that contradict each other."""
    are_known = True
    for role in roles.values():
        for key, names in (("near", role.placement.near), ("apart", role.placement.apart)):
            for index, name in enumerate(names):
                if name not in roles:
                    are_known = False
                    path = ("roles", role.name, "placement", key, index)
                    hint = nearest(name, roles)
                    findings.add(path, found=show_value(name), allowed=tuple(roles), hint=hint)
    if not are_known:
        return
    asked = [Asked(one.name, one.minimum, one.placement) for one in roles.values()]
    for trouble in contradictions(asked):
        where = ("roles", trouble.role, "placement", trouble.field)
        findings.add(where, hint=f"{trouble.text}; no nodes could ever meet that")


def rendered(placement: Placement) -> dict[str, object]:
    """Return the placement as a job file has it."""
    return {
        **({"near": list(placement.near)} if placement.near else {}),
        **({"apart": list(placement.apart)} if placement.apart else {}),
        **({"maxPerNode": placement.max_per_node} if placement.max_per_node else {}),
        **({"nodes": dict(placement.nodes)} if placement.nodes else {}),
    }
