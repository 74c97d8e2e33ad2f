"""Keeps etcd from filling up: lets go of old revisions, and makes room when it is nearly full.

Etcd compares the size of its file with its quota. Compaction leaves holes in the file that are
filled again; only defragmentation makes it smaller. Over the quota etcd raises an alarm, and takes
nothing that needs room until somebody has made some and has disarmed it.
"""

import anyio
import grpc.aio
import structlog
from msgspec import Struct
from msgspec.structs import replace

from primusd.errors import StoreFullError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient, EtcdRefusedError
from primusd.state.etcd.figures import NOSPACE, alarms, compaction_point, measure
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.messages import messages
from primusd.state.figures import StoreFigures
from primusd.units import bytes_words

log = structlog.get_logger()

LOOK_S = 10.0
COMPACT_S = 60.0
ROOM_AGAIN_S = 600.0
"""Defragmentation holds a server up; where it did not help enough it is not done again at once."""
ALARM_AGAIN_S = 15.0
WITHIN_S = 10.0
DEFRAGMENT_S = 120.0
"""For one server: it copies its whole file."""


class UpkeepLimits(Struct, frozen=True):
    """When to say something, and when to do something."""

    warn_percent: int = 70
    stop_percent: int = 85
    quota_byte_count: int = 0
    """0: as the servers say."""
    is_alone: bool = True
    """Nobody else uses this etcd: old revisions and alarms are ours to deal with."""
    look_s: float = LOOK_S
    compact_s: float = COMPACT_S


class Upkeep:
    """A head's care for etcd.

    Attributes:
        figures: As last measured; None before.
    """

    def __init__(
        self, client: EtcdClient, layout: Layout, leadership: Leadership, limits: UpkeepLimits
    ) -> None:
        self.figures: StoreFigures | None = None
        self._client = client
        self._layout = layout
        self._leadership = leadership
        self._limits = limits
        self._before = 0
        self._compact_at_s = anyio.current_time() + limits.compact_s
        self._room_at_s = 0.0
        self._level = ""

    def refusal(self) -> StoreFullError | None:
        """Return why no new job is taken; None while there is room for one."""
        found, limits = self.figures, self._limits
        if found is None or not (found.is_full or found.used_percent >= limits.stop_percent):
            return None
        what = "compacts and defragments it" if limits.is_alone else "leaves that to its operator"
        return StoreFullError(
            f"etcd has used {found.used_percent} % of its quota of "
            f"{bytes_words(found.quota_byte_count)}: no new job is taken from "
            f"{limits.stop_percent} % on",
            hint=f"primusd {what}; raise --quota-backend-bytes, or delete jobs that are over",
        )

    async def run(self) -> None:
        """Look after it until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(self._limits.look_s)

    async def measured(self) -> StoreFigures:
        """Measure now, with the point up to which old revisions are gone."""
        found = await measure(self._client, quota_byte_count=self._limits.quota_byte_count)
        point = await compaction_point(self._client, self._layout.cluster)
        return replace(found, compacted=point)

    async def look(self) -> None:
        """Measure once, and do what is due."""
        try:
            found = self.figures = await measure(
                self._client, quota_byte_count=self._limits.quota_byte_count
            )
            self._tell(found)
            if not self._limits.is_alone:
                return
            if self._leadership.left_s:
                await self._compact_old()
            if self.refusal() is not None and anyio.current_time() >= self._room_at_s:
                await self._make_room(found)
        except StoreUnavailableError as error:
            # It is away, or another one was faster.
            log.debug("etcd.not_measured", text=error.message)

    def _tell(self, found: StoreFigures) -> None:
        """Say once when a limit is passed, in either direction."""
        level, percent = "", found.used_percent
        if found.is_full:
            level = "full"
        elif percent >= self._limits.stop_percent:
            level = "stop"
        elif percent >= self._limits.warn_percent:
            level = "warn"
        if level == self._level:
            return
        self._level = level
        told = {"used_percent": percent, "quota_bytes": found.quota_byte_count}
        match level:
            case "full":
                log.error("etcd.quota_used_up", **told)
            case "stop":
                log.error("etcd.quota_nearly_used_up", **told)
            case "warn":
                log.warning("etcd.quota_filling", **told)
            case _:
                log.info("etcd.quota_fine", **told)

    async def _compact_old(self) -> None:
        """Let go of what was overwritten more than a minute ago, now and then."""
        if anyio.current_time() < self._compact_at_s:
            return
        self._compact_at_s = anyio.current_time() + self._limits.compact_s
        newest = await self._revision()
        # Of a minute ago: whoever reads or watches behind that goes on undisturbed.
        before, self._before = self._before, newest
        if before:
            await self._compact(before)

    async def _make_room(self, found: StoreFigures) -> None:
        """Compact, defragment each server, and disarm the alarm once there is room."""
        again_s = ALARM_AGAIN_S if found.is_full else ROOM_AGAIN_S
        self._room_at_s = anyio.current_time() + again_s
        if not self._leadership.left_s and not (found.is_full and await self._has_no_leader()):
            # Under the alarm nobody can begin to lead: then it is anybody's to deal with.
            return
        await self._compact(await self._revision(), is_awaited=True)
        # The leader of the servers last: the others answer meanwhile.
        order = sorted(range(len(found.servers)), key=lambda one: found.servers[one].is_leader)
        for position in order:
            await self._defragment(position)
        found = self.figures = await measure(
            self._client, quota_byte_count=self._limits.quota_byte_count
        )
        if found.used_percent < self._limits.stop_percent:
            if found.is_full:
                await self._disarm()
        else:
            log.error("etcd.stays_full", used_percent=found.used_percent)
        self._tell(found)

    async def _defragment(self, position: int) -> None:
        request = messages()["DefragmentRequest"]()
        address = self._client.addresses[position]
        try:
            await self._client.once(
                position, "Maintenance", "Defragment", request, within_s=DEFRAGMENT_S
            )
        except grpc.aio.AioRpcError as error:
            log.warning("etcd.not_defragmented", address=address, text=error.details())
        else:
            log.info("etcd.defragmented", address=address)

    async def _disarm(self) -> None:
        """Take the alarm of every server back."""
        try:
            for one in await alarms(self._client):
                if one.kind == NOSPACE:
                    request = messages()["AlarmRequest"](
                        action=2, memberID=one.server, alarm=NOSPACE
                    )
                    await self._client.call("Maintenance", "Alarm", request, within_s=WITHIN_S)
        except EtcdRefusedError as error:
            log.error("etcd.alarm_kept", text=error.message)  # noqa: TRY400 - of a permission.
            return
        log.info("etcd.alarm_disarmed")
        self.figures = await measure(self._client, quota_byte_count=self._limits.quota_byte_count)

    async def _compact(self, revision: int, *, is_awaited: bool = False) -> None:
        request = messages()["CompactionRequest"](revision=revision, physical=is_awaited)
        try:
            await self._client.call("KV", "Compact", request, within_s=WITHIN_S)
        except StoreUnavailableError as error:
            # Another one has compacted as far as that already.
            log.debug("etcd.not_compacted", text=error.message)
            self._before = 0

    async def _revision(self) -> int:
        # One of our own keys: a user may be let read no other.
        request = messages()["RangeRequest"](key=self._layout.lane, count_only=True)
        answer = await self._client.call("KV", "Range", request, within_s=WITHIN_S)
        return int(answer.header.revision)

    async def _has_no_leader(self) -> bool:
        request = messages()["RangeRequest"](key=self._layout.leader, keys_only=True)
        return not (await self._client.call("KV", "Range", request, within_s=WITHIN_S)).kvs
