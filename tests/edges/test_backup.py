"""A backup: what it holds comes back, and what is none, or not whole, is told apart in words."""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from primusd.ctl.failures import CtlError
from primusd.ctl.output import Printer
from primusd.ctl.storing import _backup
from primusd.errors import NewerSchemaError
from primusd.records import SCHEMA
from primusd.state.backup import Backup, BackupError, backup_of, read_about, read_backup, written
from primusd.state.journal import Loaded, Snapshot
from tests.contracts.test_journal import entry
from tests.edges.api_server import Server, serve

LOADED = Loaded(
    {"": Snapshot("", 40, b"admission"), "job": Snapshot("job", 41, bytes(range(256)) * 9_000)},
    tuple(entry(number, text="n" * 50_000) for number in range(41, 90)),
    7,
    89,
)


def backup(loaded: Loaded = LOADED) -> Backup:
    return backup_of(
        loaded,
        cluster="default",
        cluster_id="c1",
        secret=b"s" * 32,
        store="etcd",
        version="0.1.0",
        wall_ms=1_700_000_000_000,
    )


def content(loaded: Loaded = LOADED) -> bytes:
    return b"".join(written(backup(loaded)))


def sealed(data: bytes) -> bytes:
    """Return a body with its right digest: what is wrong with it is not that it was cut off."""
    return data + hashlib.sha256(data).digest()


def test_what_is_written_comes_back() -> None:
    found = read_backup(content(), name="a")

    assert found == backup()
    assert (found.about.revision, found.about.created_at) == (89, "2023-11-14T22:13:20Z")


def test_the_first_two_lines_tell_a_person_what_it_is() -> None:
    first, second = content().split(b"\n")[:2]

    assert first == b"primusd-backup 1"
    assert msgspec.json.decode(second)["clusterId"] == "c1"


def test_it_is_small_for_what_repeats() -> None:
    assert len(content()) < 200_000


@pytest.mark.parametrize("left", [0, 10, 20, 60, 400, 1_000, -33, -1])
def test_a_backup_that_was_cut_off_is_told(left: int) -> None:
    with pytest.raises(BackupError, match=r"cut off|is no backup") as raised:
        read_backup(content()[:left], name="a.backup")

    assert raised.value.message.startswith("a.backup ")


@pytest.mark.parametrize("at", [200, 1_000, -40, -1])
def test_a_flipped_bit_is_told(at: int) -> None:
    data = bytearray(content())
    data[at] ^= 1

    with pytest.raises(BackupError, match="damaged"):
        read_backup(bytes(data), name="a")


def test_a_foreign_file_is_told_by_how_it_begins() -> None:
    with pytest.raises(BackupError, match="is no backup of a store: it begins with b'SQLite"):
        read_backup(b"SQLite format 3\0" + b"x" * 500, name="journal.db")


def test_a_backup_of_a_newer_form_is_refused() -> None:
    with pytest.raises(BackupError, match="form 2; this version reads form 1"):
        read_backup(content().replace(b"primusd-backup 1", b"primusd-backup 2", 1), name="a")


def test_a_backup_of_a_newer_schema_is_refused_though_its_other_fields_are_unknown() -> None:
    newer = b'primusd-backup 1\n{"schema": 9999, "shape": "new"}\nbody'

    with pytest.raises(NewerSchemaError, match="schema 9999"):
        read_about(newer, name="a")


def test_an_entry_of_a_newer_schema_in_it_is_refused() -> None:
    newer = replace(LOADED, entries=(entry(89, schema=SCHEMA + 1),))

    with pytest.raises(NewerSchemaError):
        read_backup(content(newer), name="a")


def test_a_backup_that_does_not_hold_what_it_says_is_damaged() -> None:
    made = backup()
    about = replace(made.about, revision=5)

    with pytest.raises(BackupError, match="does not hold what its second line says"):
        read_backup(b"".join(written(replace(made, about=about))), name="a")


def test_a_body_that_is_no_archive_is_damaged() -> None:
    start = content().split(b"\n", 2)

    with pytest.raises(BackupError, match="is damaged"):
        read_backup(sealed(b"\n".join((*start[:2], b"nothing"))), name="a")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        yield running


def test_a_running_daemon_sends_all_that_it_holds_as_of_one_revision(server: Server) -> None:
    server.node()
    server.submit(name="hello")

    data = b"".join(server.client.parts("/api/v1/store/backup"))

    found = read_backup(data, name="a")
    assert found.about.revision == server.engine.revision
    assert found.secret == server.context.secret
    assert [one.revision for one in found.loaded.entries] == list(
        range(1, server.engine.revision + 1)
    )


@pytest.mark.parametrize("role", ["read", "write"])
def test_only_an_admin_takes_a_backup_for_the_secret_is_in_it(server: Server, role: str) -> None:
    client = server.tcp(f"tok-{role}")

    with pytest.raises(CtlError, match="may not take a backup"):
        b"".join(client.parts("/api/v1/store/backup"))

    assert client.get("/api/v1/store")["kind"] == "Store"


def printer() -> Printer:
    return Printer("table", no_color=True, now_s=0)


def test_a_backup_that_breaks_off_leaves_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.backup"
    path.write_bytes(b"older")

    with pytest.raises(CtlError, match="cut off"):
        _backup(printer(), path, iter([content()[:1_000]]))

    assert path.read_bytes() == b"older"
    assert [one.name for one in tmp_path.iterdir()] == ["a.backup"]


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield content()[:100]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CtlError, match="No space left on device"):
        _backup(printer(), tmp_path / "a.backup", parts())

    assert list(tmp_path.iterdir()) == []


def test_a_backup_is_for_its_owner_alone(tmp_path: Path) -> None:
    _backup(printer(), tmp_path / "a.backup", iter([content()]))

    assert (tmp_path / "a.backup").stat().st_mode & 0o777 == 0o600


@pytest.mark.root
def test_a_folder_that_one_may_not_write_is_told(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    tmp_path.chmod(0o755)
    os.seteuid(65_534)
    try:
        with pytest.raises(CtlError, match="Permission denied"):
            _backup(printer(), tmp_path / "a.backup", iter([content()]))
    finally:
        os.seteuid(0)
