"""A whole primusd reads folders by time, and says which of them did not come."""

import json
from pathlib import Path
from typing import Any


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
