"""A training loop of one's own on TensorFlow's workers: `shoal launch -- python ...`.

`MultiWorkerMirroredStrategy` reads `TF_CONFIG`.
"""

from __future__ import annotations

import json
import os

import tensorflow as tf

STEPS, BATCH = 60, 32


def main() -> None:
    """Fits a line; every worker ends with the same weights."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    with strategy.scope():
        weights = tf.Variable(tf.zeros((2, 1)))
    random = tf.random.Generator.from_seed(task["index"])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def own(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                error = tf.matmul(x, weights) - tf.reduce_sum(x, 1, keepdims=True)
                loss = tf.reduce_mean(error**2)
            gradient = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
            weights.assign_sub(0.1 * mean)
            return loss

        losses = strategy.run(own, args=(x,))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    loss = tf.constant(0.0)
    for _ in range(STEPS):
        loss = step(random.normal((BATCH, 2)))
    count = strategy.num_replicas_in_sync
    print(f"{task['type']} {task['index']} of {count}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
