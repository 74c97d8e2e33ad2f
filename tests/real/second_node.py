"""Further nodes on one host, as other hosts would be."""

import json
import subprocess
from pathlib import Path
from typing import Any

BIN = "primusd"


class Second:
    """A node of a head beside its own, with a state directory and ports of its own.

    Attributes:
        flags: What it offers.
        procs: Of a control group that it begins in; empty none.
    """

    def __init__(self, head: Any, ports: tuple[int, int], name: str = "b") -> None:
        self.head = head
        self.ports = ports
        self.name = name
        self.file = head.folder / f"{name}.json"
        self.state = head.folder / f"other-{name}"
        self.flags = ["--cpu", "3", "--memory", "4Gi", "--label", "zone=x"]
        self.procs: tuple[Path, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def introduce(self) -> None:
        """Write the file by which it finds the daemon."""
        self.head.ctl("nodes", "add", self.name, "--out", str(self.file))

    def start(self) -> None:
        """Start it, and wait until the daemon knows it as ready."""
        command = [BIN, "node", "--name", self.name, "--bootstrap", str(self.file)]
        command += ["--state-dir", str(self.state), "--ports", f"{self.ports[0]}-{self.ports[1]}"]
        command += self.flags
        if self.procs:
            enter = "; ".join(f"echo 0 > {path}" for path in self.procs)
            command = ["/bin/sh", "-c", f'{enter}; exec "$@"', "sh", *command]
        environment = dict(self.head.environment)
        del environment["PRIMUS_ADDRESS"]
        with self.head.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.head.until(f"{self.name} is ready", lambda: self.document().get("phase") == "Ready")

    def kill(self) -> None:
        """Kill it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill it, if it was ever started."""
        if self.process is not None:
            self.kill()

    def document(self) -> dict[str, Any]:
        """Return what the daemon shows of it, {} nothing."""
        items = self.head.document("nodes", "list")["items"]
        return next((one for one in items if one["name"] == self.name), {})


def first_name(head: Any) -> str:
    """Return the name of the head's own node."""
    (name,) = {one["name"] for one in head.document("nodes", "list")["items"]} - {"b"}
    return str(name)


def cordon_first(head: Any) -> str:
    """Let everything new go to b; return the name of the other node."""
    name = first_name(head)
    head.ctl("nodes", "cordon", name)
    return name


def worker(command: str, **changes: object) -> str:
    """Return a job file with workers of one core each."""
    role = {"command": command, "resources": {"cpu": 1}, "restart": {"delay": "50ms"}}
    job = {"apiVersion": "primus/v1", "name": "two", "roles": {"worker": {**role, **changes}}}
    return json.dumps({**job, "budgets": {"application": 5}, "files": ["hi.txt"]})


def submit(head: Any, command: str, **changes: object) -> str:
    """Submit such a job, which ships a file."""
    (head.folder / "hi.txt").write_text("shipped\n")
    return str(head.submit(worker(command, **changes)))


def placed(head: Any, name: str) -> dict[str, str]:
    """Return on which node the newest attempt of each replica is."""
    items = head.document("get", name, "--replicas")["items"]
    return {one["name"]: one["attempts"][-1]["node"] for one in items}


def started(head: Any, second: Second, *, flags: tuple[str, ...] = ()) -> None:
    """Start the daemon and both nodes."""
    head.start(*flags)
    head.until("the first node is ready", lambda: bool(head.document("nodes", "list")["items"]))
    second.introduce()
    second.start()
