"""What a daemon and a node keep of attempts that are over: no descriptor, no thread, no process."""

from pathlib import Path
from typing import Any

import msgspec

SHORT = """
name: short-{number}
roles:
  fine: {{replicas: 6, command: "echo done"}}
  failing: {{replicas: 3, command: "exit 1", budgets: {{application: 1}}, restart: {{delay: 1ms}}}}
"""
JOBS = 4
SLACK = 1
"""An answer that is on its way holds its connection."""


def held(pid: int) -> tuple[int, int]:
    """Return how many descriptors and threads a process has."""
    process = Path(f"/proc/{pid}")
    return sum(1 for _ in (process / "fd").iterdir()), sum(1 for _ in (process / "task").iterdir())


def test_forty_short_attempts_leave_neither_descriptors_nor_threads_nor_processes(
    head: Any,
) -> None:
    head.start()
    head.ended(head.submit(SHORT.format(number=0)))
    node = msgspec.json.decode((head.state / "node.lock").read_bytes())["pid"]
    watched = {"daemon": head.daemon.pid, "node": node}

    def only_ours() -> bool:
        return all("primusd" in line for line in head.processes().values())

    head.until("nothing runs beside daemon and node", only_ours)
    before = {name: held(pid) for name, pid in watched.items()}
    for number in range(1, JOBS):
        name = head.submit(SHORT.format(number=number))
        status = head.ended(name)
        assert status["phase"] == "Failed", status
        head.ctl("logs", name)

    head.until("nothing runs beside daemon and node", only_ours)

    def is_as_before() -> bool:
        # A thread that idled for 10 s ends when there is something to do again.
        head.ctl("logs", "short-0")
        return all(
            now <= then + SLACK
            for name, pid in watched.items()
            for now, then in zip(held(pid), before[name], strict=True)
        )

    head.until(f"descriptors and threads are no more than {before}", is_as_before)
