"""What heads share beside the store, and what they may not take for theirs."""

from argparse import Namespace
from pathlib import Path

import pytest

from primusd.config import load
from primusd.errors import ConfigError
from primusd.startup import Prepared, blobs_folder, take_shared
from primusd.state.directory import take_state_directory


def prepared(tmp_path: Path, name: str, url: str, *, section: str = "blobs") -> Prepared:
    state = tmp_path / name
    file = tmp_path / f"{name}.toml"
    file.write_text(f'[{section}]\nurl = "{url}"\n')
    loaded = load({"state_dir": state}, {"HOME": str(tmp_path)}, file, uid=1000)
    directory = take_state_directory(state, cluster="default")
    return Prepared(Namespace(), loaded, directory, "", (), is_ephemeral=False)


def test_a_shared_folder_of_blobs_is_of_one_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "blobs"
    one = prepared(tmp_path, "one", f"file://{folder}")
    take_shared(one)
    take_shared(one)
    assert blobs_folder(one) == folder

    other = prepared(tmp_path, "other", str(folder))
    with pytest.raises(ConfigError, match="belongs to cluster"):
        take_shared(other)

    # The second head of a cluster has its id from the store.
    other.directory.adopt(one.directory.cluster_id, one.directory.secret, store="etcd://a:1")
    take_shared(other)


@pytest.mark.parametrize("section", ["blobs", "history"])
def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, section: str) -> None:
    (tmp_path / "file").write_text("no folder")
    url = f"file://{tmp_path}/file/shared"

    with pytest.raises(ConfigError, match=f"{section}.url {url} cannot be used: .*Not a dir"):
        take_shared(prepared(tmp_path, "one", url, section=section))


def test_an_object_store_that_does_not_answer_is_told(tmp_path: Path) -> None:
    loaded = prepared(tmp_path, "one", "webhdfs://127.0.0.1:1/primus")

    with pytest.raises(ConfigError, match=r"blobs.url webhdfs://127.0.0.1:1/primus cannot be used"):
        take_shared(loaded)


@pytest.mark.parametrize("url", ["s3:/bucket", "https://host/a", "file:folder", "s3:///", "blobs"])
def test_a_url_that_nothing_can_be_written_to_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        prepared(tmp_path, "one", url)

    (problem,) = raised.value.errors
    assert problem.path == "blobs.url"
    assert "file:///folder" in problem.allowed


def test_blobs_lie_in_the_state_directory_where_nothing_is_said(tmp_path: Path) -> None:
    alone = prepared(tmp_path, "one", "")
    take_shared(alone)

    assert blobs_folder(alone) == tmp_path / "one" / "blobs"
    assert not blobs_folder(alone).exists()


def test_a_state_directory_with_an_embedded_store_does_not_join_a_cluster(tmp_path: Path) -> None:
    directory = take_state_directory(tmp_path / "state", cluster="default")
    (directory.path / "journal.db").touch()

    with pytest.raises(ConfigError, match="embedded store") as raised:
        directory.adopt("0" * 32, b"s" * 32, store="etcd://a:1")
    assert "primusctl store move --to etcd://a:1" in raised.value.hint


def test_what_a_state_directory_adopted_stays(tmp_path: Path) -> None:
    directory = take_state_directory(tmp_path / "state", cluster="default")
    home = directory.home()
    directory.adopt("0" * 32, b"s" * 32, store="etcd://a:1")
    directory.close()

    again = take_state_directory(tmp_path / "state", cluster="default")
    assert (again.cluster_id, again.secret, again.home()) == ("0" * 32, b"s" * 32, home)
    again.close()


def test_a_directory_whose_jobs_are_in_etcd_is_not_started_with_another_store(
    tmp_path: Path,
) -> None:
    directory = take_state_directory(tmp_path / "state", cluster="default")
    directory.check_embedded()
    directory.adopt("0" * 32, b"s" * 32, store="etcd://a:1")
    directory.close()
    again = take_state_directory(tmp_path / "state", cluster="default")

    with pytest.raises(ConfigError, match="are in etcd://a:1, not in an embedded store") as raised:
        again.check_embedded()
    assert "--store etcd://a:1" in raised.value.hint
    with pytest.raises(ConfigError, match=f"what etcd://b:1 has is cluster {'1' * 32}"):
        again.adopt("1" * 32, b"t" * 32, store="etcd://b:1")

    # The same cluster under another address, and a store that was moved.
    again.adopt("0" * 32, b"s" * 32, store="etcd://b:1")
    assert again.store == "etcd://b:1"
    again.keep("0" * 32, b"s" * 32, store="")
    again.check_embedded()
    again.close()
