"""What a job file says of its turn: queue, priority, preemptible, after."""

from typing import Any

from primusd.job.labels import is_label
from primusd.job.spec import JobSpec
from primusd.jobfile.document import show_value
from primusd.jobfile.names import check_label
from primusd.jobfile.section import Section

AFTER_MAX = 100


def read_queueing(section: Section) -> dict[str, Any]:  # Any: fields of JobSpec, any type
    """Return the fields of the spec that say when a job may start."""
    queue = section.text("queue", "default")
    if section.has("queue") and queue:
        check_label(section.findings, section.at("queue"), queue)
    return {
        "queue": queue,
        "priority": section.count("priority", 50, high=100),
        "preemptible": section.flag("preemptible", default=True),
        "after": _after(section),
    }


def _after(section: Section) -> tuple[str, ...]:
    names = section.texts("after")
    if len(names) > AFTER_MAX:
        section.wrong("after", f"at most {AFTER_MAX} jobs")
    for index, name in enumerate(names):
        if not all(is_label(part) for part in name.split("/", 1)):
            section.findings.add(
                (*section.at("after"), index),
                found=show_value(name),
                allowed="the name of a job, namespace/name, or a uid",
            )
    return names


def render_queueing(spec: JobSpec) -> dict[str, object]:
    """Return the same as a job file's values."""
    return {
        "queue": spec.queue,
        "priority": spec.priority,
        "preemptible": spec.preemptible,
        "after": list(spec.after),
    }
