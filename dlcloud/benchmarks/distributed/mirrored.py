"""Train with `tf.distribute.MultiWorkerMirroredStrategy`, and print the images a second of all workers.

TensorFlow takes the addresses from TF_CONFIG. Images and labels are synthetic, and the weights random: it
measures speed. Every worker has a batch of its own (weak scaling). The health checks: before, all workers add
ones up; after, their weights must be equal.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .job import read_job

CLASSES = 100
EVERY = 5
"""Steps between two lines of output."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    is_first = read_job().is_head
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    answered = int(_sum(strategy, tf.constant(1.0)))
    if answered != workers:
        raise SystemExit(f"{answered} of {workers} workers answered")
    if is_first:
        sys.stdout.write(f"all {workers} workers answered\n")
    with strategy.scope():
        weights = make_weights(arguments.width)
    _train(strategy, weights, arguments, is_first=is_first)
    total = checksum(weights)
    if int(_sum(strategy, total)) != int(total) * workers:
        raise SystemExit("workers have other weights than the first")
    if is_first:
        sys.stdout.write("the weights of all workers are equal\n")
    return 0


def make_weights(width: int) -> list[Any]:
    generator = tf.random.Generator.from_seed(0)
    channels, weights = 3, []
    for stage in range(4):
        outputs = width << stage
        shape = (3, 3, channels, outputs)
        weights.append(tf.Variable(generator.normal(shape) * (2 / (9 * channels)) ** 0.5))
        channels = outputs
    return [*weights, tf.Variable(generator.normal((channels, CLASSES)) * (1 / channels) ** 0.5)]


def checksum(weights: Sequence[Any]) -> Any:  # noqa: ANN401 - a tensor
    """Add the bits of all weights up, as integers."""
    return tf.add_n([tf.reduce_sum(tf.cast(tf.bitcast(weight, tf.int32), tf.int64)) for weight in weights])


def logits(weights: Sequence[Any], images: Any) -> Any:  # noqa: ANN401 - tensors
    """Compute (batch, CLASSES) of images (batch, size, size, 3) float32."""
    values = images
    for weight in weights[:-1]:
        values = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(values, weight, 1, "SAME")), 2, 2, "SAME")
    return tf.reduce_mean(values, axis=(1, 2)) @ weights[-1]


def _train(strategy: Any, weights: Sequence[Any], arguments: argparse.Namespace, *, is_first: bool) -> None:  # noqa: ANN401
    size = arguments.size
    images = tf.random.normal((arguments.batch, size, size, 3), seed=1)
    labels = tf.random.uniform((arguments.batch,), maxval=CLASSES, dtype=tf.int32, seed=2)

    def compute() -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(weights, images))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for weight, mean in zip(weights, means, strict=True):
            weight.assign_sub(0.01 * mean)
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:  # noqa: ANN401
        return strategy.run(compute)

    began = time.perf_counter()
    for number in range(1, arguments.steps + 1):
        loss = float(strategy.experimental_local_results(step())[0])
        if number % EVERY == 0 and is_first:
            images_done = EVERY * arguments.batch * strategy.num_replicas_in_sync
            throughput = images_done / (time.perf_counter() - began)
            sys.stdout.write(f"step {number}: loss {loss:.3f}, images/s: {throughput:.2f}\n")
            sys.stdout.flush()
            began = time.perf_counter()


def _sum(strategy: Any, value: Any) -> Any:  # noqa: ANN401
    """Add a value of each worker up."""

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> Any:  # noqa: ANN401
        def own() -> Any:  # noqa: ANN401
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        return strategy.run(own)

    return strategy.experimental_local_results(add())[0]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=32, help="images of a worker (default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="height and width (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels of stage 1 (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
