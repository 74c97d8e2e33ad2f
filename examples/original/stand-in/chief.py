"""Stands in for a chief that trains with parameter servers: fits a line, then ends with 0."""

import os

POINTS = [(x / 10, 3 * x / 10 + 1) for x in range(-10, 11)]
EPOCHS = 5
RATE = 0.5

slope = offset = 0.0
print(f"chief {os.environ['EXECUTOR_ID']} of {os.environ['ROLES_LIST']}", flush=True)
for epoch in range(1, EPOCHS + 1):
    for _ in range(20):
        errors = [(slope * x + offset - y, x) for x, y in POINTS]
        slope -= RATE * sum(error * x for error, x in errors) / len(POINTS)
        offset -= RATE * sum(error for error, _ in errors) / len(POINTS)
    loss = sum((slope * x + offset - y) ** 2 for x, y in POINTS) / len(POINTS)
    print(f"Epoch {epoch}/{EPOCHS} loss {loss:.6f}", flush=True)
