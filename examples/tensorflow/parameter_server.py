"""Fits a line with ParameterServerStrategy; what `parameter-server.yaml` runs, in all of its roles.

The chief decides and ends; parameter servers and workers serve until they are stopped. A worker
that is lost comes back alone, at the address it had, and its steps are done by others meanwhile.
"""

import argparse
import json
import os

import tensorflow as tf

ROUND = 100


def main() -> None:
    """Serve or coordinate, as this trainer's task asks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    flags = parser.parse_args()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    print(f"{cluster.task_type} {cluster.task_id}", flush=True)
    if cluster.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            cluster.cluster_spec(),
            job_name=cluster.task_type,
            task_index=cluster.task_id,
            protocol="grpc",
            start=True,
        )
        server.join()
    else:
        train(cluster, flags.steps)


def train(cluster: tf.distribute.cluster_resolver.ClusterResolver, steps: int) -> None:
    """Hand out steps to the workers and end."""
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(0.0)
        bias = tf.Variable(0.0)

    @tf.function
    def step() -> tf.Tensor:
        x = tf.random.uniform([64])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x + bias - (3 * x + 1)) ** 2)
        of_weight, of_bias = tape.gradient(loss, [weight, bias])
        weight.assign_sub(0.1 * of_weight)
        bias.assign_sub(0.1 * of_bias)
        return loss

    for done in range(0, steps, ROUND):
        losses = [coordinator.schedule(step) for _ in range(min(ROUND, steps - done))]
        coordinator.join()
        print(f"step {done + len(losses)}, loss {losses[-1].fetch():.4f}", flush=True)
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    print(f"{steps} steps by {workers} workers", flush=True)
    print(f"ends: weights {weight.numpy():.4f} {bias.numpy():.4f}", flush=True)


if __name__ == "__main__":
    main()
