"""The chief: keeps the one shared model, takes gradients, and judges the model at the end."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from model import SIZE, Adam, features, initial_weights, predict, receive, send

import primus

SAY_EVERY_STEPS = 200


def say(what: str, step: int) -> None:
    """Print a line with the time, so that a reader sees when training stood still."""
    print(f"{time.time():.3f} step {step}: {what}", flush=True)


class Chief:
    """The shared model; its methods are called by one thread a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._weights = initial_weights()
        self._adam = Adam(SIZE)
        self._rows = 0
        self._done: set[int] = set()
        self._joined: dict[int, int] = {}
        self.all_done = threading.Event()

    def serve(self, link: socket.socket, workers: int) -> None:
        """Answer one worker until it is done, or gone: then its replacement joins."""
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with link:
            while (message := receive(link)) is not None:
                header, body = message
                index = int(str(header["worker"]))
                if header["says"] == "done":
                    self._count_done(index, workers)
                    send(link, {"says": "bye"})
                    return
                send(link, {"says": "weights"}, self._take(header, body))

    def _take(self, header: dict[str, object], body: bytes) -> bytes:
        """Apply a gradient (none when a worker joins) and return the weights."""
        with self._lock:
            if header["says"] == "join":
                index = int(str(header["worker"]))
                self._joined[index] = self._joined.get(index, 0) + 1
                say(f"worker-{index} joins", self._adam.steps)
            else:
                self._adam.step(self._weights, np.frombuffer(body, np.float32))
                self._rows += int(str(header["rows"]))
                if self._adam.steps % SAY_EVERY_STEPS == 0:
                    say("trained", self._adam.steps)
                    primus.report(step=self._adam.steps)
            return self._weights.tobytes()

    def _count_done(self, index: int, workers: int) -> None:
        with self._lock:
            self._done.add(index)
            if len(self._done) == workers:
                self.all_done.set()

    def judge(self, path: Path) -> dict[str, float]:
        """Return the mean absolute error on rows that no worker has seen, in minutes."""
        table = pq.read_table(path)
        batch = {name: table[name].to_numpy() for name in table.column_names}
        inputs, _ = features(batch)
        delay, label = batch["dep_delay"], batch["arr_delay"]
        label = label[np.isfinite(delay) & np.isfinite(label)]
        error = np.abs(predict(self._weights, inputs) - label).mean()
        naive = np.abs(np.median(label) - label).mean()
        return {"error": float(error), "naive": float(naive), "rows": self._rows}


def main() -> None:
    """Serve the workers until all are done, then judge the model and save it."""
    workers = int(json.loads(os.environ["PRIMUS_ROLES"])["worker"])
    listener = socket.create_server((os.environ["PRIMUS_HOST"], int(os.environ["PRIMUS_PORT"])))
    chief = Chief()

    def accept() -> None:
        while True:
            link, _ = listener.accept()
            threading.Thread(target=chief.serve, args=(link, workers), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    chief.all_done.wait()
    print("result " + json.dumps(chief.judge(Path("data/held-out.parquet"))), flush=True)


if __name__ == "__main__":
    main()
