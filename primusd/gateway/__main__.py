"""`python -m primusd.gateway`: what a role with `feed: http` runs."""

import argparse
import os
import sys

import anyio
from aiohttp import web

import primus
from primusd.gateway.serving import application
from primusd.gateway.source import IDLE_S, LEASE_S, Source

BATCH_ROWS = 1_024


def main() -> int:
    """Serve the streams of this trainer until they are finished; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m primusd.gateway", description=main.__doc__)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, metavar="N")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_S, metavar="S")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_S, metavar="S")
    asked = parser.parse_args()
    names = list(filter(None, os.environ.get("PRIMUS_STREAMS", "").split(",")))
    if not names:
        parser.error("no stream: a job's role with `feed: http` and `data:` runs this")
    code = 0
    try:
        anyio.run(_serve, names, asked)
    except* primus.StoppingError as stopping:
        sys.stderr.write(f"stops: {stopping.exceptions[0]}\n")
        code = 1
    return code


async def _serve(names: list[str], asked: argparse.Namespace) -> None:
    times = asked.lease_seconds, asked.idle_seconds
    sources = {name: Source(name, asked.batch_rows, *times) for name in names}
    app = application(sources, os.environ.get("PRIMUS_FEED_KEY", ""))
    # What is on its way to a client that hangs up is given back at once.
    runner = web.AppRunner(app, handler_cancellation=True)
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
