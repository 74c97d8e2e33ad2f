"""What an older version left in etcd is read for ever: `journals/etcd-*.json.gz`, key by key.

A file is made once, from a real server: `python -m tests.golden.record_etcd NAME`.
"""

import base64
import gzip
import json
from pathlib import Path

import pytest

from primusd.admission.events import NodeWentAway
from primusd.records import SCHEMA
from primusd.state.etcd.contents import read_contents
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import decode_identity
from primusd.state.etcd.reading import Read, Row

JOURNALS = Path(__file__).with_name("journals")
NAMES = sorted(path.name for path in JOURNALS.glob("etcd-*.json.gz"))
CLUSTER = "golden"
LARGE_BYTES = 400_000
"""More than a value may have; four of them are more than a transaction may."""


def test_there_is_one() -> None:
    assert "etcd-1.json.gz" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_an_older_version_left_in_etcd_is_read(name: str) -> None:
    """A write that is larger than a transaction was cut short, and counts as a whole."""
    layout = Layout(CLUSTER)
    told = json.loads(gzip.decompress((JOURNALS / name).read_bytes()))
    rows = {
        key.encode(): Row(base64.b85decode(value), 1, 1, 0) for key, value in sorted(told.items())
    }

    contents, loaded = read_contents(layout, Read(1, rows))

    events = [one.records[0].event for one in loaded.entries]
    assert events == [NodeWentAway("b" * LARGE_BYTES), NodeWentAway("c")]
    assert [one.revision for one in loaded.entries] == [2, 3]
    bodies = {f"uid/{number}": b"s" * LARGE_BYTES for number in range(4)}
    bodies["uid"] = b"small"
    assert {one.machine: one.body for one in loaded.snapshots.values()} == bodies
    assert contents.unfinished
    assert contents.schema <= SCHEMA
    assert decode_identity(rows[layout.leader].value).member == "a"
