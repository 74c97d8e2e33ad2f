"""Units that were handed out and read are packed as further ones are listed."""

from msgspec.structs import replace

from primusd.datafeed.ledger import listed, tasks
from primusd.datafeed.ledger.draft import StreamDraft
from primusd.datafeed.ledger.listed import UnitEntry
from primusd.datafeed.ledger.shards import items

PACKS_PER_EVENT = 4
"""A piece of a listing has half as many units; a pack takes a millisecond."""
BEHIND_MAX = 16_384
"""So many units that were handed out stay as they are for the sake of those not read yet."""


def pack_passed(draft: StreamDraft) -> None:
    """Pack units of which nothing is open any more; only where they are read as they are listed.

    What asks for a single unit here and there would unpack one after the other.
    """
    if not draft.tracks.is_plain or not draft.epochs:
        return
    first = draft.units.packed_count
    passed = min(epoch.next_unit for epoch in draft.epochs.values()) - first
    if passed < listed.PACK_UNITS:
        return
    open_packs = _open_packs(draft)
    for _ in range(min(PACKS_PER_EVENT, passed // listed.PACK_UNITS)):
        # Of many that were passed some may be held for hours: those are unpacked again and again.
        is_behind = passed > BEHIND_MAX + 2 * draft.lease_count
        if first // listed.PACK_UNITS in open_packs and not is_behind:
            return
        entries = [_known(draft, number) for number in range(first, first + listed.PACK_UNITS)]
        for number, entry in enumerate(entries, first):
            if entry.size >= 0:
                draft.found.drop(number, number)
        draft.units = draft.units.with_packed(entries)
        first, passed = first + listed.PACK_UNITS, passed - listed.PACK_UNITS


def _open_packs(draft: StreamDraft) -> set[int]:
    """Return the packs, those to come too, with units that are not finished in an open epoch."""
    return {
        number // listed.PACK_UNITS
        for epoch in draft.epochs.values()
        for number, state in items(epoch.units.result())
        if not tasks.is_finished(state, draft.end(number))
    }


def _known(draft: StreamDraft, number: int) -> UnitEntry:
    """Return a unit with what was found out about it."""
    entry = draft.units[number]
    found = draft.found.find(number, number)
    if entry.size >= 0 or found is None:
        return entry
    return replace(entry, size=found.size, cuts=found.cuts)
