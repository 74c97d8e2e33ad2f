"""`python -m primusd.gateway`: what a role with `feed: http` runs."""

import argparse
import os
import sys

import anyio
from aiohttp import web

import primus
from primusd.gateway.serving import application
from primusd.gateway.source import LEASE_S, Source

BATCH_ROWS = 1_024


def main() -> int:
    """Serve the streams of this trainer until they are finished; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m primusd.gateway", description=main.__doc__)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, metavar="N")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_S, metavar="S")
    asked = parser.parse_args()
    names = list(filter(None, os.environ.get("PRIMUS_STREAMS", "").split(",")))
    if not names:
        parser.error("no stream: a job's role with `feed: http` and `data:` runs this")
    code = 0
    try:
        anyio.run(_serve, names, asked.batch_rows, asked.lease_seconds)
    except* primus.StoppingError as stopping:
        sys.stderr.write(f"stops: {stopping.exceptions[0]}\n")
        code = 1
    return code


async def _serve(names: list[str], batch_rows: int, lease_s: float) -> None:
    sources = {name: Source(name, batch_rows, lease_s) for name in names}
    runner = web.AppRunner(application(sources, os.environ.get("PRIMUS_FEED_KEY", "")))
    await runner.setup()
    host, port = os.environ.get("PRIMUS_HOST", "127.0.0.1"), os.environ.get("PRIMUS_PORT", "0")
    await web.TCPSite(runner, host, int(port)).start()
    sys.stdout.write(f"serves {', '.join(names)} on http://{host}:{port}\n")
    sys.stdout.flush()
    primus.ready()
    try:
        async with anyio.create_task_group() as tasks:
            for source in sources.values():
                tasks.start_soon(source.pull)
    finally:
        # Whoever asks at this moment hears the end.
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
