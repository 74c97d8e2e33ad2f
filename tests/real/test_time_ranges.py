"""A whole primusd reads folders by time, and says which of them did not come."""

import json
from pathlib import Path
from typing import Any

import pytest


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


@pytest.mark.soak
def test_m077_a_file_that_comes_late_is_read_once_and_named(head: Any) -> None:
    """Looks come every 10 s at most often, so this takes half a minute."""
    folder = Path(head.folder) / "late"
    folder.mkdir()
    (folder / "b.txt").write_bytes(b"first\n")
    head.start()
    seen = Path(head.folder) / "seen.txt"
    name = head.submit(f"""
name: late
roles: {{worker: {{command: "cat > {seen}", feed: stdin, data: clicks}}}}
data:
  clicks:
    sources: [{{files: "{folder}/*.txt", rescan: {{every: 10s, for: 15s}}}}]
""")

    def units() -> dict[str, Any]:
        found: dict[str, Any] = head.document("data", name)["items"][0]["units"]
        return found

    head.until("all is read", lambda: seen.exists() and seen.read_bytes() == b"first\n")
    (folder / "a.txt").write_bytes(b"second\n")
    (folder / "b.txt").write_bytes(b"it was changed\n")
    head.until("the late file is there", lambda: units()["listed"] == 2)
    told = head.ctl("data", name).stdout
    status = head.ended(name)

    assert status["phase"] == "Succeeded", status
    assert seen.read_bytes() == b"first\nsecond\n"
    assert "1 file came late" in told
    assert f"changed since it was listed, not read again: {folder}/b.txt" in told
    assert units()["rescan"]["late"] == 1
