"""The rivals' side of `bench/lease_wire.py`: DLRover's master, in its own environment.

python leases_rivals.py wire CLIENTS    # pairs of get_task and report a second, by gRPC
python leases_rivals.py open COUNT      # µs for one such pair in its process, so many open
"""

import logging
import multiprocessing
import os
import queue
import socket
import sys
import time
from typing import Any

SECONDS = 2.0
WAIT_S = 60.0
SHARDS = 50_000
PAIRS = 2_000


def main(what: str, count: int) -> None:
    """Print one figure."""
    os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
    logging.disable(logging.CRITICAL)
    print({"wire": wire, "open": open_tasks}[what](count), flush=True)


def _serve(port: int, ready: Any) -> None:
    logging.disable(logging.CRITICAL)
    from dlrover.python.master.local_master import LocalJobMaster  # noqa: PLC0415
    from dlrover.python.scheduler.job import LocalJobArgs  # noqa: PLC0415

    arguments = LocalJobArgs("local", "default", "bench")
    arguments.initilize()
    master = LocalJobMaster(port, arguments)
    master.prepare()
    ready.put(1)
    time.sleep(WAIT_S)


def _client(port: int) -> Any:
    from dlrover.python.elastic_agent.master_client import build_master_client  # noqa: PLC0415

    return build_master_client(f"127.0.0.1:{port}", 10)


def _take(port: int, begin: Any, found: Any) -> None:
    logging.disable(logging.CRITICAL)
    client = _client(port)
    found.put(0)
    begin.wait(WAIT_S)
    pairs, end = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        task = client.get_task("rows")
        task = task[1] if isinstance(task, tuple) else task
        client.report_task_result("rows", task.task_id, "")
        pairs += 1
    found.put(pairs)


def wire(clients: int) -> float:
    """Return pairs a second of so many clients, a process each."""
    made = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ready: Any = made.Queue()
    master = made.Process(target=_serve, args=(port, ready), daemon=True)
    master.start()
    ready.get(timeout=WAIT_S)
    _client(port).report_dataset_shard_params(
        batch_size=1,
        num_epochs=1,
        dataset_size=SHARDS,
        shuffle=False,
        num_minibatches_per_shard=1,
        dataset_name="rows",
        task_type=1,
        storage_type="table",
    )
    begin, found = made.Event(), made.Queue()
    processes = [
        made.Process(target=_take, args=(port, begin, found), daemon=True) for _ in range(clients)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        found.get(timeout=WAIT_S)
    begin.set()
    try:
        pairs = sum(found.get(timeout=WAIT_S) for _ in processes)
    except queue.Empty:
        raise TimeoutError("a client did not end") from None
    master.terminate()
    return pairs / SECONDS


def open_tasks(count: int) -> float:
    """Return the µs of a pair while so many tasks are open; its own limit of 50,000 is lifted."""
    from dlrover.proto import elastic_training_pb2 as pb  # noqa: PLC0415
    from dlrover.python.master.shard.batch_dataset_manager import (  # noqa: PLC0415
        BatchDatasetManager,
    )
    from dlrover.python.master.shard.dataset_splitter import TableDatasetSplitter  # noqa: PLC0415

    splitter = TableDatasetSplitter("rows", count, 1, 1, shuffle=False, max_shard_count=10**9)
    manager = BatchDatasetManager(pb.TRAINING, 1, splitter)
    first = manager.get_task("worker", 0)
    manager.report_task_status(first.task_id, success=True)
    pairs = min(PAIRS, count - 1)
    began = time.perf_counter()
    for _ in range(pairs):
        manager.report_task_status(manager.get_task("worker", 0).task_id, success=True)
    return (time.perf_counter() - began) / pairs * 1e6


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
