"""The Event document, made from a timeline entry (docs/api-documents.md §4)."""

from msgspec import UNSET

from primusd.job.model import Job, Moment
from primusd.views import documents
from primusd.views.times import rfc3339


def event_document(job: Job, moment: Moment) -> documents.Event:
    """Return the document of a timeline entry of the job."""
    return documents.Event(
        id=f"{moment.revision}.{moment.position}",
        resource_version=str(moment.revision),
        at=rfc3339(moment.at_ms),
        namespace=job.spec.namespace,
        job=job.spec.name,
        job_uid=job.uid,
        level=moment.level,
        reason=moment.reason,
        subject=moment.subject,
        by=moment.by,
        message=moment.message,
        cause=moment.cause or UNSET,
        details=moment.details,
    )
