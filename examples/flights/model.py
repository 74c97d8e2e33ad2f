"""The model: a small network in numpy that predicts, at take-off, how late a flight arrives."""

import json
import socket
import struct
from collections.abc import Mapping

import numpy as np

CARRIERS, ORIGINS, MONTHS = 16, 3, 12
INPUTS = 7 + CARRIERS + ORIGINS + MONTHS
HIDDEN = 64
SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
SCALE_MINUTES = 40.0


def features(batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (rows x INPUTS) and labels (rows) of the flights that took off and landed."""
    delay = np.asarray(batch["dep_delay"], np.float32)
    label = np.asarray(batch["arr_delay"], np.float32)
    known = np.isfinite(delay) & np.isfinite(label)
    delay, label = delay[known] / SCALE_MINUTES, label[known] / SCALE_MINUTES
    hour = np.asarray(batch["hour"], np.float32)[known] * np.float32(2 * np.pi / 24)
    inputs = np.zeros((len(label), INPUTS), np.float32)
    inputs[:, 0] = delay
    inputs[:, 1] = np.maximum(delay, 0)
    inputs[:, 2] = np.maximum(delay - 1, 0)
    inputs[:, 3] = np.asarray(batch["distance"], np.float32)[known] / 1000
    inputs[:, 4], inputs[:, 5], inputs[:, 6] = np.sin(hour), np.cos(hour), 1
    rows = np.arange(len(label))
    inputs[rows, 7 + np.asarray(batch["carrier"], np.int64)[known]] = 1
    inputs[rows, 7 + CARRIERS + np.asarray(batch["origin"], np.int64)[known]] = 1
    month = np.asarray(batch["month"], np.int64)[known] - 1
    inputs[rows, 7 + CARRIERS + ORIGINS + month] = 1
    return inputs, label


def initial_weights(seed: int = 7) -> np.ndarray:
    """Return all weights in one vector of SIZE."""
    random = np.random.default_rng(seed)
    parts = [random.normal(0, 1 / np.sqrt(shape[0]), shape) for shape in SHAPES]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def split(weights: np.ndarray) -> list[np.ndarray]:
    """Return views of the vector in their shapes."""
    views, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        views.append(weights[start : start + size].reshape(shape))
        start += size
    return views


def predict(weights: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the predicted delays in minutes."""
    first, first_bias, second, second_bias = split(weights)
    hidden = np.maximum(inputs @ first + first_bias, 0)
    return (hidden @ second + second_bias)[:, 0] * SCALE_MINUTES


def gradient(weights: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean squared error, one vector of SIZE."""
    first, first_bias, second, second_bias = split(weights)
    hidden = np.maximum(inputs @ first + first_bias, 0)
    error = (hidden @ second + second_bias)[:, 0] - labels
    back = (2 / max(1, len(labels))) * error[:, None]
    to_hidden = (back @ second.T) * (hidden > 0)
    parts = (inputs.T @ to_hidden, to_hidden.sum(0), hidden.T @ back, back.sum(0))
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


class Adam:
    """Adam (Kingma and Ba, 2015) on one vector."""

    def __init__(self, size: int, rate: float = 2e-3) -> None:
        self._rate = rate
        self._mean = np.zeros(size, np.float32)
        self._square = np.zeros(size, np.float32)
        self.steps = 0

    def step(self, weights: np.ndarray, slope: np.ndarray) -> None:
        """Move the weights in place."""
        self.steps += 1
        self._mean += 0.1 * (slope - self._mean)
        self._square += 0.001 * (slope * slope - self._square)
        mean = self._mean / (1 - 0.9**self.steps)
        square = self._square / (1 - 0.999**self.steps)
        weights -= self._rate * mean / (np.sqrt(square) + 1e-8)


def send(link: socket.socket, header: Mapping[str, object], body: bytes = b"") -> None:
    """Send a message: two lengths, a JSON header, bytes."""
    head = json.dumps(header).encode()
    link.sendall(struct.pack("<II", len(head), len(body)) + head + body)


def receive(link: socket.socket) -> tuple[dict[str, object], bytes] | None:
    """Return the next message, None when the other side is gone."""
    lengths = _exactly(link, 8)
    if lengths is None:
        return None
    head_size, body_size = struct.unpack("<II", lengths)
    head, body = _exactly(link, head_size), _exactly(link, body_size)
    return None if head is None or body is None else (json.loads(head), body)


def _exactly(link: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = link.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
