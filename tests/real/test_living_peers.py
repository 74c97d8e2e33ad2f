"""C68, M040: trainers that run on learn who came and who went from the file of their peers."""

from typing import Any

PROGRAM = """
import json, os, time

known = None
while True:
    with open(os.environ["PRIMUS_PEERS_FILE"]) as file:
        document = json.load(file)
    found = document["generation"], [one["index"] for one in document["roles"]["worker"]]
    if found != known:
        print("sees", *found, flush=True)
    known = found
    time.sleep(0.02)
"""


def views(head: Any) -> dict[str, str]:
    """Return what each trainer has seen last."""
    lines = head.ctl("logs", "seen").stdout.splitlines()
    return dict(tuple(line.split("  sees ")) for line in lines if "  sees " in line)


def test_c68_m040_every_trainer_that_lives_sees_the_same_generation_and_list(head: Any) -> None:
    head.start()
    (head.folder / "watch.py").write_text(PROGRAM)
    head.submit(
        "name: seen\nfiles: [watch.py]\nschedule: {policy: dynamic}\n"
        "roles: {worker: {replicas: {min: 1, max: 3}, command: [python3, watch.py]}}\n"
    )
    three, two = "1 [0, 1, 2]", "1 [0, 1]"
    names = ("worker-0", "worker-1", "worker-2")
    head.until("all see three", lambda: views(head) == dict.fromkeys(names, three))

    head.ctl("scale", "seen", "worker=2", "--wait", "--timeout", "60s")
    left = {"worker-0": two, "worker-1": two}
    head.until("both see two", lambda: views(head) | left == views(head))
    assert views(head)["worker-2"] == three, "who goes is told to stop, not that it is no peer"
    head.ctl("scale", "seen", "worker=3")
    head.until("all see three again", lambda: views(head) == dict.fromkeys(names, three))

    assert head.attempts("seen") == {"worker-0": 1, "worker-1": 1, "worker-2": 2}
    head.ctl("cancel", "seen")
    assert head.ended("seen")["phase"] == "Cancelled"
