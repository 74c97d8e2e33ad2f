"""What of a stream's sources is to be listed, in order: each of them, at each of its moments.

Sources without times come first, one after the other; then those with times by their moments,
where the coarsest step among them leads: with daily and hourly folders in one stream each day
comes whole, in the order of the sources.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import Files, NotThereError, said_of
from primusd.job.partitions import STEPS, Moment, coarse_after, filled, moments, step_of
from primusd.job.spec import Source, StreamSpec
from primusd.units import format_duration


class Visit(Struct, frozen=True):
    """A source, at one of its moments."""

    index: int
    source: Source
    moment: Moment | None = None

    @property
    def due_ms(self) -> int:
        """When it may be listed, in milliseconds since the Unix epoch; 0 at any time."""
        return 0 if self.moment is None else self.moment.ends_ms + self.source.delay_ms

    @property
    def part(self) -> tuple[str, str]:
        """Number of the source and label of the moment, as units have them."""
        return str(self.index), "" if self.moment is None else self.moment.label


class Found(Struct, frozen=True):
    """What lies in a folder by time."""

    units: tuple[Unit, ...] = ()
    lacks: str = ""
    """What is not there; "" the folder is whole."""


class Visits:
    """The sources of a stream, as they are listed."""

    def __init__(self, spec: StreamSpec, clock_ms: Callable[[], int]) -> None:
        self._spec = spec
        self._said = said_of(spec)
        self._clock_ms = clock_ms

    def __iter__(self) -> Iterator[Visit]:
        timed = []
        for index, source in enumerate(self._spec.sources):
            if source.files and source.span is None:
                yield Visit(index, source)
            elif source.files:
                timed.append((index, source))
        yield from _merged(timed)

    def whole(self, visit: Visit) -> Found:
        """Return the units of one folder by time, or what it lacks.

        Raises:
            ListingError: It cannot be listed.
        """
        assert visit.moment is not None
        files = self.files(visit)
        is_early = self._clock_ms() < visit.due_ms
        if is_early and visit.source.delay_ms:
            delay = format_duration(visit.source.delay_ms)
            return Found(lacks=f"{files.path} comes {delay} after its time")
        if visit.source.markers:
            names = [filled(name, visit.moment) for name in visit.source.markers]
            if lacks := files.has_markers(names):
                return Found(lacks=f"{lacks} is not there")
        elif is_early:
            return Found(lacks=f"{files.path} is not over")
        try:
            return Found(tuple(unit for part in files.parts() for unit in part))
        except NotThereError as error:
            # A folder that is whole may be empty.
            return Found() if visit.source.markers else Found(lacks=error.message)

    def files(self, visit: Visit) -> Files:
        """Return the files that a visit is about.

        Raises:
            ListingError: The path is none, or its storage cannot be had.
        """
        source = visit.source
        options = {}
        if len(self._spec.sources) > 1:
            options["source"] = str(visit.index)
        if visit.moment is not None:
            options["part"] = visit.moment.label
            source = replace(source, files=filled(source.files, visit.moment))
        return Files(source, self._said, options=options)


def _merged(sources: Sequence[tuple[int, Source]]) -> Iterator[Visit]:
    """Yield the moments of sources with times: step by step, in each source after source."""
    if not sources:
        return
    lines: list[tuple[int, Source, Iterator[Moment]]] = []
    for index, source in sources:
        span = source.span
        assert span is not None
        step = step_of(source.files)
        lines.append((index, source, moments(span.first, span.last, step, span.zone)))
    lead = min((step_of(source.files) for _, source in sources), key=STEPS.index)
    following = [next(line, None) for _, _, line in lines]
    while any(following):
        now = min(
            coarse_after(one, source.delay_ms, lead)
            for one, (_, source, _) in zip(following, lines, strict=True)
            if one is not None
        )
        for place, (index, source, line) in enumerate(lines):
            while (one := following[place]) is not None and (
                coarse_after(one, source.delay_ms, lead) == now
            ):
                yield Visit(index, source, one)
                following[place] = next(line, None)
