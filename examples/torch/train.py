"""Fits a line with DistributedDataParallel over gloo; what `torch.yaml` runs.

After a restart it goes on from rank 0's newest checkpoint: DDP sends its parameters to the others.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path("line.pt")  # in the replica's own folder, which outlives its attempts
SAVE_EVERY = 50


def main() -> None:
    """Train, check that all ranks agree, end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    flags = parser.parse_args()

    dist.init_process_group("gloo")  # everything it needs is in the environment
    rank, size = dist.get_rank(), dist.get_world_size()
    line = torch.nn.Linear(1, 1)
    first = begin_at(line) if rank == 0 else 0
    model = DistributedDataParallel(line)
    first = agree(first)
    tell(f"rank {rank} of {size}, run {os.environ['TORCHELASTIC_RUN_ID']}, from step {first}")

    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loss = torch.zeros(())
    for step in range(first + 1, flags.steps + 1):
        x = torch.rand(64, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % SAVE_EVERY == 0:
            save(line, step)
            tell(f"step {step}, loss {loss.item():.4f}")
        time.sleep(flags.pause)

    weights = [None] * size
    dist.all_gather_object(weights, (round(line.weight.item(), 4), round(line.bias.item(), 4)))
    tell(f"rank {rank} ends: loss {loss.item():.4f}, weights {set(weights)}")
    if len(set(weights)) != 1:
        sys.exit("the ranks do not agree")
    end()


def begin_at(line: torch.nn.Linear) -> int:
    """Load the newest checkpoint and return its step; 0 without one."""
    if not CHECKPOINT.exists():
        return 0
    found = torch.load(CHECKPOINT)
    line.load_state_dict(found["line"])
    return int(found["step"])


def agree(step: int) -> int:
    """Return rank 0's step."""
    told = torch.tensor([step])
    dist.broadcast(told, src=0)
    return int(told.item())


def save(line: torch.nn.Linear, step: int) -> None:
    """Write a checkpoint beside the old one and put it in its place, whole."""
    beside = CHECKPOINT.with_suffix(".new")
    torch.save({"line": line.state_dict(), "step": step}, beside)
    beside.replace(CHECKPOINT)


def tell(text: str) -> None:
    print(text, flush=True)


def end() -> None:
    """End at once: one in twenty gloo processes that end as usual aborts, its work done."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
