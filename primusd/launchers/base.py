"""The launcher port: run one program with one file, end it, tell what is there.

The contract, tested in tests/contracts/: launching an attempt twice makes one process; what was
launched before a restart is found again; stop is final; an exit code arrives unchanged at least
once; a lost replica is told from a failed one; cancelling a launch leaves nothing behind.
`watch` says *vanished* only of what it found a trace of, or in answer to a stop or a release.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from primusd.executor.protocol import Bootstrap
from primusd.job.events import (
    AttemptLaunched,
    AttemptVanished,
    AttemptWaiting,
    LaunchFailed,
    PreemptionNoticed,
)
from primusd.job.ids import AttemptId
from primusd.job.spec import Resources

LauncherEvent = (
    AttemptLaunched | AttemptWaiting | LaunchFailed | AttemptVanished | PreemptionNoticed
)


class Listed(Struct, frozen=True):
    """An attempt of which the back end has a trace."""

    attempt: AttemptId
    node: str
    is_alive: bool


class Launcher(Protocol):
    """A back end."""

    name: str

    async def launch(
        self, attempt: AttemptId, node: str, resources: Resources, bootstrap: Bootstrap
    ) -> None:
        """Ask for the executor of an attempt; returns when the back end has taken the wish.

        Idempotent per attempt. What came of it is told to the sink: AttemptLaunched, or
        LaunchFailed.
        """
        ...

    async def stop(self, attempt: AttemptId, node: str) -> bool:
        """End all of the attempt now; True when the back end answered and took the kill.

        Idempotent. The end itself is told to the sink as AttemptVanished, also of an attempt
        that never started.
        """
        ...

    async def release(self, attempt: AttemptId, node: str) -> bool:
        """End what still lives of an ended attempt and let go of it; True as for `stop`."""
        ...

    async def list(self) -> tuple[Listed, ...]:
        """Return every attempt of which the back end has a trace now."""
        ...

    def watch(self, sink: Callable[[LauncherEvent], None]) -> None:
        """Tell the sink from now on what happens; set once, before `launch`."""
        ...
