"""F01, F13, F20: a whole primusd says why, and says it again of a moment that is over."""

from typing import Any


def memory_of_node(head: Any) -> int:
    head.until("the node is there", lambda: head.document("nodes", "list")["items"])
    found: int = head.document("nodes", "list")["items"][0]["capacity"]["memoryBytes"]
    return found


def submit(head: Any, name: str, command: str, share_bytes: int, rest: str = "") -> None:
    head.submit(
        f"apiVersion: primus/v1\nname: {name}\n{rest}\nroles:\n"
        f"  worker: {{command: {command}, resources: {{memory: {share_bytes}B}}}}\n"
    )


def explained(head: Any, name: str) -> dict[str, dict[str, Any]]:
    """Return the answers by question; of several the first."""
    found: dict[str, dict[str, Any]] = {}
    for one in head.document("explain", name)["items"]:
        found.setdefault(one["question"], one)
    return found


def test_F01_F20_a_job_is_explained_while_it_waits_when_it_fails_and_afterwards(head: Any) -> None:
    head.start()
    share_bytes = memory_of_node(head) * 6 // 10
    go = head.folder / "go"
    until_go = f"'until test -e {go}; do sleep 0.05; done'"
    submit(head, "first", until_go, share_bytes, "deadline: 1h")
    head.until("it runs", lambda: head.phase("first") == "Running")
    crashes = "'echo ValueError: label out of range >&2; exit 3'"
    submit(head, "second", crashes, share_bytes, "budgets: {application: 0}")

    waits = explained(head, "second")["why does it wait"]

    assert waits["reason"] == "WaitingForSlots"
    assert waits["numbers"]["memoryBytesNeeded"] > waits["numbers"]["memoryBytesFree"]
    assert waits["estimate"]["from"] == "deadline of first"
    assert 3_500_000 < waits["estimate"]["inMs"] <= 3_600_000
    assert waits["wouldFit"][-1].endswith("when first ends")

    go.touch()
    assert head.ended("first")["phase"] == "Succeeded"
    assert head.ended("second")["verdict"]["reason"] == "Crashed"

    ends = explained(head, "second")["why this verdict"]
    assert ends["numbers"]["budgetLimit"] == 0
    assert "ValueError: label out of range" in ends["answer"]
    told = head.ctl("explain", "second").stdout
    assert "why this verdict (worker-0/1): Crashed" in told
    assert "first cause" in head.ctl("describe", "second").stdout

    submitted, *_ = head.document("events", "second")["items"]
    then = head.document("replay", "second", "--event", submitted["id"])
    assert then["job"]["status"]["phase"] == "Queued"
    again = then["explanations"][0]
    assert (again["reason"], again["numbers"]["memoryBytesNeeded"]) == (
        waits["reason"],
        waits["numbers"]["memoryBytesNeeded"],
    )
    assert again["estimate"]["from"] == "deadline of first"
    last = head.document("events", "second")["items"][-1]
    end = head.document("replay", "second", "--event", last["id"])
    now = head.document("get", "second")
    assert end["job"]["status"] == now["status"]
