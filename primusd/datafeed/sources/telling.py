"""What a listed file is: its format as said, by its name, or by its first bytes."""

from collections.abc import Callable, Mapping

from primusd.job.formats import FORMATS, PACKABLE, told_by_head, told_by_name

TOLD_BYTES = 64


class UntoldError(Exception):
    """Nothing tells a file's format; the text says what it begins with."""


def form_options(
    location: str, said: Mapping[str, str], head: Callable[[], bytes]
) -> dict[str, str]:
    """Return a unit's options: `format`, and `compression` where it is told, be it `none`.

    Args:
        location: Of the file.
        said: What the job file says: `format` and `compression`, "" or missing for nothing.
        head: Reads the file's first bytes; called only where neither the job file nor the name
            tells the format.

    Raises:
        UntoldError: Nothing tells it.
    """
    by_name = told_by_name(location)
    form, packed = said.get("format", "") or by_name.format, by_name.compression
    if not form:
        first = head()
        by_head = told_by_head(first)
        form, packed = by_head.format, packed or by_head.compression
        if not form:
            what = f"compressed ({packed}), and its name tells no format" if packed else "unknown"
            raise UntoldError(
                f"the format of {location} is {what}: it begins with {first[:TOLD_BYTES]!r}; "
                f"set format: {', '.join(FORMATS)}"
            )
    packed = said.get("compression", "") or packed
    if form not in PACKABLE or not packed:
        return {"format": form}
    return {"format": form, "compression": packed}
