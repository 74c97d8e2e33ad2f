"""Listing: which files a source stands for, in which order, and what is said when there is none."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from primusd.datafeed.sources.files import ListingError, list_files, list_sources
from primusd.job.spec import Source
from tests.datafeed.test_stream_listing import listing


def names(path: Path | str, format_name: str = "") -> list[str]:
    return [Path(unit.location).name for unit in list_files(Source(str(path)), format_name)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "deep" / "er").mkdir(parents=True)
    (data / "_temporary").mkdir()
    for name in ("b.txt", "a.txt", "_SUCCESS", ".hidden.txt", "deep/c.txt", "deep/er/d.txt"):
        (data / name).write_bytes(b"row\n")
    (data / "_temporary" / "e.txt").write_bytes(b"row\n")
    (data / "empty.txt").touch()
    return data


def test_a_folder_stands_for_its_files_in_name_order(folder: Path) -> None:
    """M070."""
    assert names(folder) == ["a.txt", "b.txt"]
    assert names(f"{folder}/") == ["a.txt", "b.txt"]


def test_globs_match_and_two_stars_walk_down_but_not_into_hidden_folders(folder: Path) -> None:
    assert names(folder / "*.txt") == ["a.txt", "b.txt"]
    assert names(folder / "[b-z].txt") == ["b.txt"]
    assert names(folder / "*" / "c.txt") == ["c.txt"]
    assert names(folder / "**" / "*.txt") == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert names(folder / "**") == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert names(folder / "**" / "**" / "d.txt") == ["d.txt"]
    assert names(folder / "_temporary" / "*.txt") == ["e.txt"]


def test_a_hidden_name_that_is_asked_for_is_listed(folder: Path) -> None:
    assert names(folder / ".h*.txt") == [".hidden.txt"]
    assert names(folder / ".hidden.txt") == [".hidden.txt"]


def test_sources_keep_their_order_and_each_is_sorted(folder: Path) -> None:
    """M078."""
    found = list_sources((Source(str(folder / "deep")), Source(f"file://{folder}")), "")

    assert [Path(unit.location).name for unit in found] == ["c.txt", "a.txt", "b.txt"]


def test_a_unit_is_pinned_by_size_and_time_of_change(folder: Path) -> None:
    path = folder / "a.txt"
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))

    (unit,) = list_files(Source(str(path)), "")

    assert (unit.kind, unit.location, unit.byte_count) == ("file", str(path), 4)
    assert unit.pin == "1700000000123456789"
    assert unit.options == {"format": "text"}


@pytest.mark.parametrize(
    "name",
    [
        "a b.txt",
        "quo'te\".txt",
        "$HOME.txt",
        "new\nline.txt",
        "日本語.txt",
        "مرحبا.txt",
        "[x]*?.txt",
    ],
)
def test_nasty_names_arrive_unchanged(tmp_path: Path, name: str) -> None:
    """C76."""
    (tmp_path / name).write_bytes(b"row\n")

    assert names(tmp_path) == [name]
    assert names(tmp_path / name) == [name]


def test_a_name_that_is_not_utf8_is_refused_in_one_sentence(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_bytes(b"row\n")

    with pytest.raises(ListingError, match="is not valid UTF-8; rename the file"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing.txt", r"missing\.txt cannot be listed: No such file or directory"),
        ("missing/*.txt", r"missing: No such file or directory"),
        ("data/*.parquet", r"matches no file$"),
        ("data/em*.txt", r"matches no file \(1 without a byte\)"),
        ("data/empty.txt", r"has no byte"),
        ("data/a.txt/*.txt", r"matches no file|Not a directory"),
        ("data/deep/er/../../_temporary/../deep/nothing/", "No such file"),
    ],
)
def test_what_cannot_be_listed_is_told_in_one_sentence(
    folder: Path, path: str, sentence: str
) -> None:
    """M086."""
    with pytest.raises(ListingError, match=sentence) as caught:
        names(f"{folder.parent}/{path}")

    assert caught.value.permanent
    assert "\n" not in caught.value.message


def test_a_folder_of_folders_says_how_to_walk_down(folder: Path) -> None:
    (folder / "deep" / "c.txt").unlink()

    with pytest.raises(ListingError, match=r"deep/\*\*/\*"):
        names(folder / "deep")


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ListingError, match="not an absolute path"):
        names("data/a.txt")


def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ListingError, match="neither a file nor a folder"):
        names(tmp_path / "pipe")


def test_a_format_that_no_name_tells_is_refused_with_the_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"label,user\n")

    with pytest.raises(ListingError, match=r"begins with b'label,user\\n'; set format: text, raw"):
        names(tmp_path)

    assert names(tmp_path, "text") == ["part-0"]


def listed(path: Path, format_name: str = "", compression: str = "") -> list[dict[str, str]]:
    found = list_files(Source(str(path)), format_name, compression)
    return [dict(unit.options) for unit in found]


@pytest.mark.parametrize(
    ("name", "head", "options"),
    [
        ("a.csv", b"x", {"format": "csv"}),
        ("a.CSV.GZ", b"x", {"format": "csv", "compression": "gz"}),
        ("a.jsonl.zst", b"x", {"format": "jsonl", "compression": "zst"}),
        ("a.tfrecords", b"x", {"format": "tfrecord"}),
        ("part-0", b"PAR1....", {"format": "parquet"}),
        ("part-1", b"ARROW1\0\0", {"format": "arrow"}),
        ("part-2", b"\xff\xff\xff\xff\x10\0\0\0", {"format": "arrow"}),
    ],
)
def test_a_format_is_told_by_the_name_then_by_the_first_bytes(
    tmp_path: Path, name: str, head: bytes, options: dict[str, str]
) -> None:
    (tmp_path / name).write_bytes(head)

    assert listed(tmp_path) == [options]
    assert listed(tmp_path, "text", "none") == [{"format": "text", "compression": "none"}]


def test_what_the_job_file_says_wins_over_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"x")

    assert listed(tmp_path, "text") == [{"format": "text", "compression": "gz"}]
    assert listed(tmp_path, "", "zst") == [{"format": "csv", "compression": "zst"}]
    assert listed(tmp_path, "parquet") == [{"format": "parquet"}]


def test_a_compressed_file_of_unknown_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"\x1f\x8b\x08")

    with pytest.raises(ListingError, match=r"compressed \(gz\), and its name tells no format"):
        names(tmp_path)


def test_files_without_a_byte_are_left_out_or_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"x\n")

    assert names(tmp_path) == ["b.txt"]
    with pytest.raises(ListingError, match=r"a\.txt has no byte \(1 such files\); onEmpty: skip"):
        list_files(Source(str(tmp_path)), "", on_empty="fail")


LIST_AS_NOBODY = """
import sys
from primusd.datafeed.sources.files import ListingError, list_files
from primusd.job.spec import Source
try:
    list_files(Source(sys.argv[1]), "")
except ListingError as error:
    print(error.permanent, error.message)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_a_plain_user_may_not_read_is_told_with_its_path(what: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "d").mkdir()
        (folder / "d" / "a.txt").write_bytes(b"row\n")
        (folder / "d" / "a.txt" if what == "file" else folder / "d").chmod(0)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

        done = subprocess.run(
            [*command, sys.executable, "-c", LIST_AS_NOBODY, f"{folder}/d/*.txt"],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    where = f"{folder}/d/a.txt" if what == "file" else f"{folder}/d"
    assert done.stdout.startswith("True data source ")
    assert f"{where}: Permission denied" in done.stdout


def test_a_file_that_is_not_there_fails_with_what_would_wait_for_it(tmp_path: Path) -> None:
    with pytest.raises(ListingError, match="matches no file; missing: wait waits for it"):
        listing(Source(f"{tmp_path}/*.txt")).piece(0)
