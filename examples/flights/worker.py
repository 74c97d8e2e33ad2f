"""A worker: takes rows as they are leased to it, and sends the chief gradients."""

import json
import os
import socket
import time
from pathlib import Path

import numpy as np
from model import features, gradient, receive, send

import primus

BATCH_ROWS = 256
CONNECT_TRIES = 100


def connect_to_chief() -> socket.socket:
    """Return a connection to the chief, whose address stands in the peers file."""
    peers = json.loads(Path(os.environ["PRIMUS_PEERS_FILE"]).read_text())
    chief = peers["roles"]["chief"][0]
    for _ in range(CONNECT_TRIES):
        try:
            link = socket.create_connection((chief["host"], chief["ports"]["main"]))
        except ConnectionRefusedError:
            time.sleep(0.1)
            continue
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
    raise SystemExit("the chief does not answer")


def ask(link: socket.socket, says: str, body: bytes = b"", rows: int = 0) -> np.ndarray:
    """Tell the chief something and return the newest weights."""
    send(link, {"says": says, "worker": int(os.environ["PRIMUS_INDEX"]), "rows": rows}, body)
    answer = receive(link)
    if answer is None:
        raise SystemExit("the chief is gone")
    return np.frombuffer(answer[1], np.float32)


def main() -> None:
    """Train until the stream is finished. Asking for a batch says that the one before is used."""
    link = connect_to_chief()
    weights = ask(link, "join")
    for batch in primus.dataset(batch_rows=BATCH_ROWS):
        inputs, labels = features(batch)
        slope = gradient(weights, inputs, labels)
        weights = ask(link, "gradient", slope.tobytes(), rows=len(batch["month"]))
    ask(link, "done")


if __name__ == "__main__":
    main()
