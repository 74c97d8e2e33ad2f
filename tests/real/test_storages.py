"""A whole primusd reads folders by time from HDFS and from its own disk, in one job."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.hdfs import Hdfs, running_hdfs

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


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


def waits(head: Any, name: str) -> str:
    found = head.document("data", name)
    return json.dumps(found)


def test_a_folder_that_does_not_come_is_passed_over_and_named(head: Any) -> None:
    """M076, C54."""
    folder = Path(head.folder) / "days"
    for day in (1, 3):
        (folder / f"2020-01-0{day}").mkdir(parents=True)
        (folder / f"2020-01-0{day}" / "a.txt").write_bytes(f"day {day}\n".encode())
    head.start()

    name = head.submit(f"""
name: days
roles: {{worker: {{command: [cat], feed: stdin, data: clicks}}}}
data:
  clicks:
    format: text
    sources:
      - files: "{folder}/{{{{YYYY}}}}-{{{{MM}}}}-{{{{DD}}}}/*.txt"
        from: 2020-01-01
        to: 2020-01-03
        missing: skip after 6h
""")
    status = head.ended(name)

    assert status["phase"] == "Succeeded", status
    assert "1 folder of stream clicks did not come and was passed over" in json.dumps(status)
    assert "2020-01-02" in head.ctl("data", name).stdout
