"""What every thread of a trainer is doing now, as far as the kernel tells (proc(5))."""

from pathlib import Path


def stacks_text(pids: tuple[int, ...]) -> str:
    """Return a listing for people: each process, its threads, where each waits."""
    return "\n".join(_process(pid) for pid in pids)


def _process(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    command = _read(folder / "cmdline").replace("\0", " ").strip()
    lines = [f"process {pid}: {command or _read(folder / 'comm').strip()}"]
    try:
        threads = sorted((folder / "task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return lines[0] + " (gone)\n"
    for thread in threads:
        name = _read(thread / "comm").strip()
        state = _state(_read(thread / "status"))
        waits = _read(thread / "wchan").strip("0\n") or "-"
        lines.append(f"  thread {thread.name} {name}: {state}, in {waits}")
        lines += [f"    {line}" for line in _read(thread / "stack").splitlines()]
    return "\n".join(lines) + "\n"


def _state(status: str) -> str:
    for line in status.splitlines():
        if line.startswith("State:"):
            return line.removeprefix("State:").strip()
    return "gone"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
