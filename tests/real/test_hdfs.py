"""HDFS for real: the contract of storages (M088) by both clients, its bad days, a whole primusd."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.datafeed.formats.base import open_pinned
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError, NotThereError, list_files
from primusd.datafeed.storage import remote, schemes
from primusd.datafeed.storage.base import ReadError
from primusd.job.spec import Source
from primusd.shared_places import SharedPlace
from tests.contracts.place_contract import PlaceContract
from tests.contracts.storage_contract import StorageContract
from tests.real.conftest import FINAL
from tests.real.test_kept_positions import injected, lines_of, run, write_data
from tests.services.hdfs import USER, Hdfs, running_hdfs

NUMBERS = count()
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with (
        running_hdfs(tmp_path_factory.mktemp("hdfs")) as running,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setenv("HADOOP_USER_NAME", USER)
        yield running


class Folder:
    def __init__(self, hdfs: Hdfs, base: str) -> None:
        self.options: dict[str, str] = {}
        self.file_bytes = 10_240_000
        self._hdfs = hdfs
        self._path = f"/contract{next(NUMBERS)}"
        self.url = base + self._path
        hdfs.ask("PUT", self._path, "MKDIRS")

    def put(self, name: str, data: bytes) -> None:
        self._hdfs.put(f"{self._path}/{name}", data)

    def remove(self, name: str) -> None:
        self._hdfs.ask("DELETE", f"{self._path}/{name}", "DELETE")


class TestNativeClient(StorageContract):
    @pytest.fixture
    def place(self, hdfs: Hdfs) -> Folder:
        return Folder(hdfs, hdfs.url)


class TestWebService(StorageContract):
    @pytest.fixture
    def place(self, hdfs: Hdfs) -> Folder:
        return Folder(hdfs, f"webhdfs://{hdfs.web}")


class TestSharedPlace(PlaceContract):
    @pytest.fixture
    def shared(self, hdfs: Hdfs) -> SharedPlace:
        return SharedPlace(Folder(hdfs, hdfs.url).url, {})


class TestSharedPlaceByWeb(PlaceContract):
    @pytest.fixture
    def shared(self, hdfs: Hdfs) -> SharedPlace:
        return SharedPlace(Folder(hdfs, f"webhdfs://{hdfs.web}").url, {})


BASES: list[Callable[[Hdfs], str]] = [lambda hdfs: hdfs.url, lambda hdfs: f"webhdfs://{hdfs.web}"]
BY_BOTH = pytest.mark.parametrize("base", BASES, ids=["native", "web"])


def only_unit(url: str, name: str = "text") -> Unit:
    (unit,) = list_files(Source(url), name)
    return unit


@pytest.fixture(autouse=True)
def check_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHECK_S", 0.0)


def kind_of(read: Callable[[], object]) -> tuple[str, str]:
    """Return what kind of failure a read has, and what it says."""
    with pytest.raises(ReadError) as caught:
        read()
    return caught.value.kind, caught.value.message


@BY_BOTH
def test_a_file_that_is_shorter_than_it_was_listed_is_named(
    hdfs: Hdfs, base: Callable[[Hdfs], str]
) -> None:
    """Truncated after it was listed and opened; an opened reader may have the old blocks."""
    hdfs.put("/cut/a.txt", b"row\n" * 3_000_000)
    unit = only_unit(f"{base(hdfs)}/cut/a.txt")
    file = open_pinned(unit)
    assert file.pread(0, 8) == b"row\nrow\n"

    hdfs.ask("POST", "/cut/a.txt", "TRUNCATE&newlength=1000")

    assert kind_of(file.check)[0] == "changed"
    kind, text = kind_of(lambda: open_pinned(unit))
    # The new length shows once the last block was recovered.
    assert (kind, "it has 1000 bytes" in text or "written again" in text) == ("changed", True)


def test_the_rows_of_a_file_that_was_replaced_are_never_mixed_by_the_web_service(
    hdfs: Hdfs,
) -> None:
    hdfs.put("/mix/a.txt", b"old row\n" * 1_000_000)
    unit = only_unit(f"webhdfs://{hdfs.web}/mix/a.txt")
    file = open_pinned(unit)
    assert file.pread(0, 8) == b"old row\n"

    hdfs.put("/mix/a.txt", b"new row\n" * 1_000_000)

    kind, text = kind_of(lambda: file.pread(5_000_000, 8))
    assert (kind, "it was written again" in text) == ("changed", True)


def test_a_reader_of_the_native_client_has_the_blocks_of_the_file_it_opened(hdfs: Hdfs) -> None:
    hdfs.put("/own/a.txt", b"old row\n" * 1_000)
    file = open_pinned(only_unit(f"{hdfs.url}/own/a.txt"))
    hdfs.put("/own/a.txt", b"new row\n" * 1_000)

    assert file.pread(0, 8) == b"old row\n"
    assert kind_of(file.check)[0] == "changed"


def test_parquet_is_read_by_ranges_from_its_footer(hdfs: Hdfs, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": range(200_000), "b": [str(n % 7) for n in range(200_000)]})
    pq.write_table(table, path, row_group_size=50_000)
    hdfs.put("/table/a.parquet", path.read_bytes())
    file = open_pinned(only_unit(f"{hdfs.url}/table/a.parquet", "parquet"))

    found = pq.ParquetFile(file.arrow(), pre_buffer=True).read(["a"])

    assert found.column("a").to_pylist() == list(range(200_000))


def test_a_data_node_that_is_gone_is_waited_for(hdfs: Hdfs) -> None:
    hdfs.put("/gone/a.txt", b"row\n" * 1_000)
    units = [only_unit(f"{base(hdfs)}/gone/a.txt") for base in BASES]
    files = [open_pinned(unit) for unit in units]

    hdfs.data_node.kill()
    try:
        found = [kind_of(partial(file.pread, 0, 8)) for file in files]
    finally:
        hdfs.data_node.start()
        hdfs.until_ready()

    assert [kind for kind, _ in found] == ["transient"] * 2, found
    hdfs.data_node.until("the block is read", lambda: all(can_read(unit) for unit in units))


def test_a_name_node_in_safe_mode_is_waited_for(hdfs: Hdfs) -> None:
    """It was started again and knows of no DataNode yet: names are told, bytes are not."""
    hdfs.put("/safe/a.txt", b"row\n" * 1_000)
    urls = [f"{base(hdfs)}/safe/a.txt" for base in BASES]
    units = [only_unit(url) for url in urls]

    hdfs.data_node.kill()
    hdfs.name_node.kill()
    try:
        away = [kind_of(partial(open_pinned, unit))[0] for unit in units]
        assert not any(can_list(url) for url in urls)
        hdfs.name_node.start()
        hdfs.name_node.until("it answers", lambda: all(can_list(url) for url in urls))

        listed = [only_unit(url) for url in urls]
        safe = [kind_of(partial(first_bytes, unit)) for unit in units]
    finally:
        if not hdfs.name_node.is_running:
            hdfs.name_node.start()
        hdfs.data_node.start()
        hdfs.until_ready()

    assert (away, listed) == (["transient"] * 2, units)
    assert [(kind, "afe mode" in text) for kind, text in safe] == [("transient", True)] * 2, safe
    hdfs.data_node.until("the block is read", lambda: all(can_read(unit) for unit in units))


def first_bytes(unit: Unit) -> bytes:
    return open_pinned(unit).pread(0, 8)


def can_read(unit: Unit) -> bool:
    try:
        return first_bytes(unit) == b"row\nrow\n"
    except ReadError as error:
        if error.kind != "transient":
            raise
        return False


def can_list(url: str) -> bool:
    return bool(pin_of(url))


def pin_of(url: str) -> str:
    """Return the pin of the one file there; "" while there is none."""
    try:
        return only_unit(url).pin
    except NotThereError:
        return ""
    except ListingError as error:
        if error.permanent:
            raise
        return ""


@BY_BOTH
def test_a_file_that_its_user_may_not_read_is_bad_data_and_not_waited_for(
    hdfs: Hdfs, base: Callable[[Hdfs], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"/shut{next(NUMBERS)}"
    hdfs.put(f"{folder}/a.txt", b"row\n")
    hdfs.ask("PUT", f"{folder}/a.txt", "SETPERMISSION&permission=600")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    monkeypatch.setattr(schemes, "_clients", {})
    unit = only_unit(f"{base(hdfs)}{folder}/a.txt")

    kind, text = kind_of(lambda: first_bytes(unit))

    assert kind == "data"
    assert "Permission denied: user=bob" in text
    hdfs.ask("PUT", folder, "SETPERMISSION&permission=700")
    with pytest.raises(ListingError, match="Permission denied: user=bob") as caught:
        only_unit(f"{base(hdfs)}{folder}/a.txt")
    assert caught.value.permanent


def test_a_name_service_is_found_by_its_configuration(hdfs: Hdfs, tmp_path: Path) -> None:
    """The first of its NameNodes is none; `hdfs:///` is the default file system."""
    address = hdfs.url.removeprefix("hdfs://")
    values = {
        "fs.defaultFS": "hdfs://cluster",
        "dfs.nameservices": "cluster",
        "dfs.ha.namenodes.cluster": "one,two",
        "dfs.namenode.rpc-address.cluster.one": "127.0.0.1:1",
        "dfs.namenode.rpc-address.cluster.two": address,
    }
    lines = [f"<property><name>{n}</name><value>{v}</value></property>" for n, v in values.items()]
    text = "<configuration>\n" + "\n".join(lines) + "\n</configuration>\n"
    (tmp_path / "core-site.xml").write_text(text)
    (tmp_path / "hdfs-site.xml").write_text(text)
    hdfs.put("/named/a.txt", b"row\n")

    for url in ("hdfs://cluster/named/*.txt", "hdfs:///named/a.txt"):
        (unit,) = list_files(Source(url, storage={"confDir": str(tmp_path)}), "text")
        assert unit.options["storage.confDir"] == str(tmp_path)
        assert open_pinned(unit).pread(0, 4) == b"row\n"


def test_an_absent_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    monkeypatch.setattr(schemes, "_clients", {})

    with pytest.raises(ListingError, match="needs the package hdfs-native") as caught:
        only_unit("hdfs://nowhere/a.txt")

    assert "pip install 'primusd[hdfs]'" in caught.value.hint
    assert caught.value.permanent


def four_lines(what: str) -> bytes:
    """Return four lines, the last without an end."""
    return "\n".join(f"{what}: {number}" for number in range(4)).encode()


def lines(*whats: str) -> list[str]:
    return [f"{what}: {number}" for what in whats for number in range(4)]


def date(day: int) -> dict[str, Any]:
    return {"date": {"date": 20200100 + day}}


def hour(number: int) -> dict[str, Any]:
    return {"dateHour": {"date": 20200101, "hour": number}}


def original(daily: str, hourly: str) -> dict[str, Any]:
    """Return the original's job file of a mixed time range."""
    inputs: list[dict[str, Any]] = [
        {
            "pathPattern": f"{daily}/{{{{YYYY}}}}{{{{MM}}}}{{{{DD}}}}",
            "timeRange": (date(1), date(4)),
        },
        {
            "pathPattern": f"{hourly}/{{{{YYYY}}}}{{{{MM}}}}{{{{DD}}}}/{{{{HH}}}}",
            "timeRange": (hour(0), hour(1)),
        },
    ]
    for spec in inputs:
        first, last = spec["timeRange"]
        spec |= {"timeRange": {"from": first, "to": last}, "namePattern": "*", "textInput": {}}
        spec["successMarkerPatterns"] = ["_SUCCESS"]
    return {
        "name": "primus_input_file_text_timerange",
        "role": [
            {
                "roleName": "worker",
                "num": 1,
                "vcores": 1,
                "memoryMb": 256,
                "command": "cat",
                "successPercent": 100,
                "inputPolicy": "STREAMING",
            }
        ],
        "inputManager": {
            "fileConfig": {"inputs": [{"name": "hourly", "spec": spec} for spec in inputs]},
            "gracefulShutdown": True,
        },
    }


def test_a7_the_originals_time_range_is_read_in_order_from_two_storages(
    head: Any, hdfs: Hdfs
) -> None:
    """The marker of the last day comes while the job waits for it."""
    for day in (1, 2, 3, 4):
        hdfs.put(f"/a7/2020010{day}/data.txt", four_lines(f"daily 0{day}"))
        if day < 4:
            hdfs.put(f"/a7/2020010{day}/_SUCCESS", b"")
    for number in (0, 1):
        folder = Path(head.folder) / "hourly" / "20200101" / f"0{number}"
        folder.mkdir(parents=True)
        (folder / "data.txt").write_bytes(four_lines(f"hourly 01-0{number}"))
        (folder / "_SUCCESS").touch()
    head.start()

    spec = original(f"{hdfs.url}/a7", f"{head.folder}/hourly")
    name = head.submit(json.dumps(spec))
    head.until("it waits for a marker", lambda: "20200104/_SUCCESS" in waits(head, name))
    hdfs.put("/a7/20200104/_SUCCESS", b"")
    status = head.ended(name)

    assert status["phase"] == "Succeeded", status
    said = [line.split(maxsplit=1)[1] for line in head.ctl("logs", name).stdout.splitlines()]
    assert said == lines(
        *("daily 01", "hourly 01-00", "hourly 01-01", "daily 02", "daily 03", "daily 04")
    )


def test_a8_a9_a10_positions_stay_in_the_originals_staging_folder_in_hdfs(
    head: Any, hdfs: Hdfs
) -> None:
    """All lines, then none, then those of two files, by a savepoint of the original's."""
    size = write_data(head.folder)
    staging = f"{hdfs.url}/primus/keep"
    head.start()

    first = run(head, "first", staging)
    kept = Source(f"{staging}/default/positions.json")
    head.until("positions are kept", lambda: can_list(kept.files))
    of_first = pin_of(kept.files)
    second = run(head, "second", staging)
    # The newer ones count: those of the second are there before the injected ones come.
    head.until("they are kept again", lambda: pin_of(kept.files) not in {"", of_first})
    for file, content in injected(head.folder, size).items():
        hdfs.put(f"/primus/keep/default/{file}", content)
    third = run(head, "third", f"webhdfs://{hdfs.web}/primus/keep")

    assert first == lines_of(0, 1, 2, 3)
    assert second == []
    assert third == lines_of(2, 3)
    assert head.document("data", "third", "verify")["carried"] == 2 * size


NUMBERED = """
import os, primus, time
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=64):
        out.write("".join(f"{int(line[:9])}\\n" for line in batch["line"]))
        time.sleep(0.1)
"""
FILES, LINES = 6, 1_000


def submit_numbers(head: Any, hdfs: Hdfs, name: str, rest: str = "") -> Callable[[], list[int]]:
    """Submit a job over numbered lines of 8 KB; return what tells those its trainers have."""
    for file in range(FILES):
        rows = (b"%09d %s\n" % (file * LINES + n, b"x" * 8_000) for n in range(LINES))
        hdfs.put(f"/{name}/{file}.txt", b"".join(rows))
    out = Path(head.folder) / name
    out.mkdir()
    (out.parent / "trainer.py").write_text(NUMBERED)
    head.submit(f"""
name: {name}
roles:
  worker:
    replicas: 2
    command: [{sys.executable}, {head.folder}/trainer.py]
    env: {{OUT: "{out}"}}
    data: rows
data:
  rows:
    sources: [{{files: "{hdfs.url}/{name}/*.txt"}}]
    memory: 8Mi
    {rest}
""")
    return lambda: [
        int(line)
        for path in out.iterdir()
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def test_a_cluster_that_goes_and_comes_while_a_job_reads_costs_no_row(
    head: Any, hdfs: Hdfs
) -> None:
    """Both nodes are killed; the NameNode comes back first, in safe mode, then the DataNode."""
    head.start()
    found = submit_numbers(head, hdfs, "midway")
    head.until("the first rows", lambda: len(found()) >= 200)

    hdfs.name_node.kill()
    hdfs.data_node.kill()
    try:
        head.until("a reader waits", lambda: '"trouble"' in waits(head, "midway"))
        seen = len(found())
    finally:
        hdfs.name_node.start()
        hdfs.data_node.start()
        hdfs.until_ready()

    assert ended(head, "midway")["phase"] == "Succeeded"
    assert 200 <= seen < FILES * LINES
    assert sorted(found()) == list(range(FILES * LINES))
    assert head.document("data", "midway", "verify")["ok"]


def test_files_deleted_truncated_and_replaced_under_a_job_are_named_and_counted(
    head: Any, hdfs: Hdfs
) -> None:
    """C48, C54: the last three, which were listed and not opened yet."""
    head.start()
    found = submit_numbers(head, hdfs, "harmed", "onBad: deadLetter")
    head.until("the first rows", lambda: len(found()) >= 64)

    hdfs.ask("DELETE", "/harmed/3.txt", "DELETE")
    hdfs.ask("POST", "/harmed/4.txt", "TRUNCATE&newlength=1000")
    hdfs.put("/harmed/5.txt", b"other\n" * 300_000)

    status = ended(head, "harmed")
    rows = found()
    dead = head.document("data", "harmed", "dead")["items"]
    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "PartialSuccess")
    faults = {one["location"].rpartition("/")[2]: one["fault"] for one in dead}
    assert faults == {"3.txt": "vanished", "4.txt": "changed", "5.txt": "changed"}
    assert len(rows) == len(set(rows))
    assert set(range(3 * LINES)) <= set(rows) <= set(range(FILES * LINES))
    assert head.document("data", "harmed", "verify")["ok"]


def ended(head: Any, name: str) -> dict[str, Any]:
    """Return the status of a job that has much to read, once it is over."""
    head.until("it ends", lambda: head.phase(name) in FINAL, within_s=300)
    found: dict[str, Any] = head.ended(name)
    return found


def waits(head: Any, name: str) -> str:
    found = head.document("data", name)
    return json.dumps(found)
