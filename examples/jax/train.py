"""Fits a line on all processes of a job with JAX; what `jax.yaml` runs."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

STEPS = 200
ROWS = 64


def main() -> None:
    """Train, the rows divided among the processes."""
    # The coordinator's address it reads from the environment by itself.
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )
    rank, size = jax.process_index(), jax.process_count()
    print(f"process {rank} of {size}, {jax.device_count()} devices", flush=True)

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    by_row = NamedSharding(mesh, PartitionSpec("rows"))

    @jax.jit
    def step(line: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss_of(line: jax.Array) -> jax.Array:
            return jnp.mean((line[0] * x + line[1] - (3 * x + 1)) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(line)
        return line - 0.2 * gradient, loss

    line, loss = jnp.zeros(2), jnp.zeros(())
    rows = np.random.default_rng(rank)
    for number in range(1, STEPS + 1):
        own = rows.random(ROWS, dtype=np.float32)
        line, loss = step(line, jax.make_array_from_process_local_data(by_row, own))
        if number % 50 == 0 and rank == 0:
            print(f"step {number}, loss {float(loss):.4f}", flush=True)
    print(f"ends: weights {float(line[0]):.4f} {float(line[1]):.4f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
