"""The spec of a job as its documents show it: the job file's own spelling, with all defaults."""

from collections.abc import Mapping

from primusd.job.spec import JobSpec
from primusd.jobfile.rendering import render
from primusd.views.documents import Json


def spec_document(spec: JobSpec) -> Mapping[str, Json]:
    """Return the spec as a job file that can be submitted again unchanged."""
    return render(spec)
