"""Fits a line to points, and goes on where the newest whole checkpoint was when it is killed.

Standard library only; run it by itself too: `python examples/checkpoint/train.py`.
"""

import json
import random
import sys
import time

import primus

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
KEEP_EVERY = max(1, STEPS // 20)
STEP_S = 0.002
SLOPE, OFFSET = 3.0, -1.0


def main() -> None:
    """Train, and write a checkpoint now and then, at a warning, and before a stop."""
    step, line = 0, [0.0, 0.0]
    found = primus.latest_checkpoint()
    if found is not None:
        step = found.step
        line = json.loads((found.path / "line.json").read_text())
        print(f"goes on after step {step}", flush=True)
    kept = step
    while step < STEPS:
        step += 1
        loss = learn(line)
        primus.report(step=step, loss=loss)
        stop = primus.stopping()
        is_due = step - kept >= (KEEP_EVERY / 10 if primus.warned() else KEEP_EVERY)
        if is_due or stop is not None or step == STEPS:
            with primus.checkpoint(step=step) as folder:
                (folder / "line.json").write_text(json.dumps(line))
            kept = step
        if stop is not None:
            print(f"stops after step {step}: {stop.reason}", flush=True)
            raise SystemExit(1)
    print(f"y = {line[0]:.2f} x {line[1]:+.2f}", flush=True)


def learn(line: list[float]) -> float:
    """Take one step towards the line, and return how far it was off."""
    time.sleep(STEP_S)
    x = random.uniform(-1, 1)
    off = line[0] * x + line[1] - (SLOPE * x + OFFSET)
    line[0] -= 0.05 * off * x
    line[1] -= 0.05 * off
    return off * off


if __name__ == "__main__":
    main()
