"""How one stream's units are read: what the job file said, as a reader is told it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from primusd.datafeed.storage.base import ReadError
from primusd.job.conditions import Condition, ConditionError, parse_condition
from primusd.job.decoding import MEMORY_BYTES

BLOCK_BYTES_MIN = 64 << 10
BLOCK_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom a class of the user's runs."""

    folder: str = ""
    """It is looked for here first."""
    uid: int = -1
    """-1: that of this process; also of the group."""
    gid: int = -1


HERE = Place()


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a stream."""

    format: str = ""
    """"" as each unit or its name says."""
    columns: tuple[str, ...] = ()
    """Empty: all."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the format."""
    types: Mapping[str, str] = field(default_factory=dict)
    filter: tuple[Condition, ...] = ()
    on_schema: str = "fail"
    on_empty: str = "skip"
    memory_bytes: int = MEMORY_BYTES
    place: Place = HERE

    @property
    def record_bytes_max(self) -> int:
        """The longest record: it is held whole, more than once for a moment."""
        return self.memory_bytes // 4

    @property
    def block_bytes(self) -> int:
        """About how much is decoded at once."""
        return max(BLOCK_BYTES_MIN, min(self.memory_bytes // 16, BLOCK_BYTES_MAX))

    @property
    def is_reshaped(self) -> bool:
        """Whether rows are given otherwise than they stand in their file."""
        return bool(self.columns or self.types or self.filter)


def settings_of(
    plan: Mapping[str, str], *, memory_bytes: int, place: Place | None = None
) -> Settings:
    """Return the settings that a `FeedPlan.format` carries.

    Raises:
        ReadError: One of its conditions is none: it is from another version.
    """
    try:
        conditions = tuple(parse_condition(one) for one in json.loads(plan.get("filter") or "[]"))
    except ConditionError as error:
        raise ReadError(f"filter: {error.message}", kind="data") from error
    return Settings(
        format=plan.get("format", ""),
        columns=tuple(filter(None, plan.get("columns", "").split(","))),
        options=json.loads(plan.get("options") or "{}"),
        types=json.loads(plan.get("types") or "{}"),
        filter=conditions,
        on_schema=plan.get("onSchema", "fail"),
        on_empty=plan.get("onEmpty", "skip"),
        memory_bytes=memory_bytes,
        place=place or HERE,
    )
