"""TensorFlow's parameter servers: `shoal launch --chief --ps 2 --evaluator -- ...`.

The chief hands out steps, workers take them, servers hold the weights. The evaluator,
which is no part of the cluster, waits for the checkpoint and reads it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tensorflow as tf

STEPS, LIMIT_S = 40, 120.0


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver, path: str) -> None:
    """Runs the chief."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.zeros((2, 1)))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step() -> tf.Tensor:
        def own() -> tf.Tensor:
            x = tf.random.normal((32, 2))
            with tf.GradientTape() as tape:
                error = tf.matmul(x, weights) - tf.reduce_sum(x, 1, keepdims=True)
                loss = tf.reduce_mean(error**2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return strategy.run(own)

    losses = [coordinator.schedule(step) for _ in range(STEPS)]
    coordinator.join()
    print(f"chief: loss {float(coordinator.fetch(losses[-1])):.4f}")
    tf.train.Checkpoint(weights=weights).write(path)


def evaluate(path: str) -> None:
    """Runs the evaluator."""
    until = time.monotonic() + LIMIT_S
    while not Path(f"{path}.index").exists():
        if time.monotonic() > until:
            sys.exit("there is no checkpoint")
        time.sleep(0.2)
    weights = tf.Variable(tf.zeros((2, 1)))
    tf.train.Checkpoint(weights=weights).read(path).expect_partial()
    print(f"evaluator: weights {weights.numpy().ravel().round(1).tolist()}")


def main() -> None:
    """Runs the part that `TF_CONFIG` names."""
    path = os.path.join(os.environ["SHOAL_LOGS"], "trained")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type,
            task_index=resolver.task_id, protocol="grpc", start=True,
        )  # fmt: skip
        server.join()
    elif resolver.task_type == "evaluator":
        evaluate(path)
    else:
        train(resolver, path)


if __name__ == "__main__":
    main()
