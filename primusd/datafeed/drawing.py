"""What a reader is told of the order of a stream's rows, as it travels in a feed's plan. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.spec import Sample, Shuffle, StreamSpec

MIXED = ("roundRobin", "weighted", "priority")


class Drawing(Struct, frozen=True):
    """How rows are drawn from what a reader holds.

    Attributes:
        shuffle: None: units are read as they are.
        sample: None: all rows.
        mixing: `inOrder`, `roundRobin`, `weighted`, `priority` or `lanes` (order `strict`).
        weights: Of each track: source, or lane.
    """

    shuffle: Shuffle | None = None
    sample: Sample | None = None
    mixing: str = "inOrder"
    weights: tuple[int, ...] = (1,)

    @property
    def changes_units(self) -> bool:
        """Whether rows of a unit are permuted or left out."""
        return self.shuffle is not None or self.sample is not None

    @property
    def has_turns(self) -> bool:
        """Whether several leases are read at once, and take turns."""
        return self.mixing != "inOrder" or self.shuffle is not None

    @property
    def shares(self) -> int:
        """How many files are read at once."""
        return max(1, len(self.weights)) if self.has_turns else 1


def described(spec: StreamSpec) -> dict[str, str]:
    """Return the settings of a feed's plan for the order of rows; nothing where it is the usual."""
    found = {}
    if (shuffle := spec.shuffle) is not None:
        found["shuffle"] = f"{shuffle.seed} {shuffle.blocks} {shuffle.block_rows}"
    if (sample := spec.sample) is not None:
        found["sample"] = f"{sample.per_million} {sample.seed}"
    if spec.order == "strict":
        found["mixing"] = "lanes"
        found["weights"] = " ".join(["1"] * spec.lanes)
    elif spec.mixing in MIXED:
        found["mixing"] = spec.mixing
        is_even = spec.mixing == "roundRobin"
        found["weights"] = " ".join("1" if is_even else str(one.weight) for one in spec.sources)
    if spec.tail != "uneven":
        found["tail"] = spec.tail
    return found


def drawing_of(settings: Mapping[str, str]) -> Drawing:
    """Return what `described` wrote."""
    shuffle, sample = _numbers(settings, "shuffle"), _numbers(settings, "sample")
    return Drawing(
        Shuffle(*shuffle) if shuffle else None,
        Sample(*sample) if sample else None,
        settings.get("mixing", "inOrder"),
        _numbers(settings, "weights") or (1,),
    )


def _numbers(settings: Mapping[str, str], key: str) -> tuple[int, ...]:
    return tuple(map(int, settings.get(key, "").split()))
