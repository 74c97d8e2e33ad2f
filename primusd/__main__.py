"""`primusd`, `primusd node` and `primusd executor`: one program, three processes."""

import gc
import sys
from collections.abc import Sequence

from primusd.imports import GARBAGE_THRESHOLDS, quick_imports


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the first word names; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Each imports only what it needs: an executor must be small, a node must not start threads.
    match words:
        case ["node", *rest]:
            with quick_imports():
                from primusd.node.main import main as run_node  # noqa: PLC0415 - see above.

            return run_node(rest)
        case ["executor", *rest]:
            with quick_imports():
                from primusd.executor.main import main as run_executor  # noqa: PLC0415 - see above.

            return run_executor(rest)
        case _:
            from primusd.flags import parse  # noqa: PLC0415 - see above.

            # Whoever asks for help or the version need not wait for the daemon's parts.
            parse(words)
            with quick_imports():
                from primusd.daemon import main as run_daemon  # noqa: PLC0415 - see above.

            gc.set_threshold(*GARBAGE_THRESHOLDS)
            return run_daemon(words)


if __name__ == "__main__":
    sys.exit(main())
