"""Fits a line with MultiWorkerMirroredStrategy; what `multiworker.yaml` runs.

A loop of our own, since Keras 3's `fit` fails under this strategy (seen with TensorFlow 2.21).
"""

import json
import os

import tensorflow as tf

STEPS = 100


def main() -> None:
    """Train on all workers; each ends by itself."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finds the others by TF_CONFIG
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    print(f"{task['type']} {task['index']} of {strategy.num_replicas_in_sync}", flush=True)

    with strategy.scope():
        weight = tf.Variable(0.0)
        bias = tf.Variable(0.0)

    def gradients() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        x = tf.random.uniform([64])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x + bias - (3 * x + 1)) ** 2)
        of_weight, of_bias = tape.gradient(loss, [weight, bias])
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.MEAN, [of_weight, of_bias])
        weight.assign_sub(0.2 * total[0])
        bias.assign_sub(0.2 * total[1])
        return loss

    @tf.function
    def step() -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(gradients), axis=None)

    for number in range(1, STEPS + 1):
        loss = step()
        if number % 25 == 0:
            print(f"step {number}, loss {float(loss):.4f}", flush=True)
    print(f"ends: weights {weight.numpy():.4f} {bias.numpy():.4f}", flush=True)


if __name__ == "__main__":
    main()
