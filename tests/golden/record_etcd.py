"""Record what a cluster has in etcd for tests/golden/journals: once per form, then never again.

Usage: python -m tests.golden.record_etcd etcd-1
"""

import base64
import gzip
import json
import sys
import tempfile
from pathlib import Path

import anyio

from primusd.admission.events import NodeWentAway
from primusd.records import SCHEMA, Entry, Record
from primusd.state.etcd.lane import Lane
from primusd.state.etcd.reading import read_all
from primusd.state.journal import Snapshot
from tests.golden.test_etcd_values import CLUSTER, JOURNALS, LARGE_BYTES
from tests.services.etcd import running_etcd
from tests.services.etcd_heads import Store


class CutOffError(Exception):
    """The head died here."""


def entry(revision: int, term: int, text: str) -> Entry:
    """Return an entry of one record."""
    record = Record("", -1, "engine", NodeWentAway(text))
    return Entry(SCHEMA, term, revision, 1_700_000_000_000 + revision, (record,))


async def play(endpoints: tuple[str, ...]) -> dict[str, str]:
    """Write as a leader does, the last time what is larger than a transaction, and die in it."""
    async with Store(endpoints, CLUSTER) as store:
        term = await store.lead()
        await store.journal.append(entry(1, term, "a"), (Snapshot("uid", 1, b"small"),))
        await store.journal.append(entry(2, term, "b" * LARGE_BYTES), (Snapshot("", 1, b"gone"),))
        await store.journal.append(None, (Snapshot("", 2, b""),), keep_from=2)
        write = Lane.write

        async def dying(lane: Lane, operations: list[object]) -> None:
            await write(lane, operations)
            if any(store.layout.redo + b"head" in str(one).encode() for one in operations):
                raise CutOffError

        Lane.write = dying  # type: ignore[method-assign, assignment]  # a death, where it is seen
        parts = tuple(Snapshot(f"uid/{n}", 3, b"s" * LARGE_BYTES) for n in range(4))
        try:
            await store.journal.append(entry(3, term, "c"), parts)
        except CutOffError:
            pass
        finally:
            Lane.write = write  # type: ignore[method-assign]
        found = await read_all(store.client, store.layout.prefix)
    return {key.decode(): base64.b85encode(one.value).decode() for key, one in found.rows.items()}


def main(name: str) -> None:
    """Write NAME.json.gz."""
    with tempfile.TemporaryDirectory() as folder, running_etcd(Path(folder)) as etcd:
        rows = anyio.run(play, etcd.endpoints)
    text = json.dumps(rows, indent=1, sort_keys=True)
    (JOURNALS / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
