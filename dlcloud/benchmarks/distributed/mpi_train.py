"""Train a small VGG on scikit-learn's digits over MPI: mpi4py reduces the gradients, the network is NumPy's.

Every process has its own batch, so that the global batch grows with them (weak scaling). The health
checks: first all add ones up; at the end their weights must be equal, bit for bit.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI  # type: ignore[import-not-found]

from ..harness.digits import load_folds
from ..quantization import digits

EVERY = 10
"""Steps between two lines of output."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    world = MPI.COMM_WORLD
    answered = world.allreduce(1)
    if answered != world.size:
        raise SystemExit(f"{answered} of {world.size} processes answered")
    if world.rank == 0:
        sys.stdout.write(f"all {world.size} processes answered\n")
    layers = _train(world, arguments)
    weights = np.concatenate([layer.weight.ravel() for layer in _weighted(layers)])
    first = world.bcast(weights)
    different = world.allreduce(int(not np.array_equal(weights, first)))
    if different:
        raise SystemExit(f"{different} processes have other weights than the first")
    if world.rank == 0:
        fold = load_folds(0)[0]
        right = np.mean(digits.logits(layers, fold.held_out).argmax(axis=1) == fold.held_out_labels)
        sys.stdout.write(f"the weights of all processes are equal; accuracy: {right:.4f}\n")
    return 0


def _train(world: Any, arguments: argparse.Namespace) -> list[digits.Layer]:  # noqa: ANN401 - it ships no types
    fold = load_folds(0)[0]
    layers = digits.make_network(np.random.default_rng(0))
    generator = np.random.default_rng(1 + world.rank)
    began = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        batch = generator.integers(len(fold.training), size=arguments.batch)
        digits.compute_gradients(layers, fold.training[batch], fold.training_labels[batch])
        _share_gradients(world, _weighted(layers))
        for layer in _weighted(layers):
            layer.update(step, digits.LEARNING_RATE)
        if step % EVERY == 0 and world.rank == 0:
            seconds = time.perf_counter() - began
            images = EVERY * arguments.batch * world.size
            sys.stdout.write(f"step {step}: images/s: {images / seconds:.1f}\n")
            sys.stdout.flush()
            began = time.perf_counter()
    return layers


def _share_gradients(world: Any, layers: Sequence[digits.Weighted]) -> None:  # noqa: ANN401 - as above
    """Give every layer the mean of the processes' gradients, by one reduction of all."""
    own = np.concatenate([gradient.ravel() for layer in layers for gradient in layer.gradients])
    total = np.empty_like(own)
    world.Allreduce(own, total)
    mean, place = total / np.float32(world.size), 0
    for layer in layers:
        parts = []
        for gradient in layer.gradients:
            parts.append(mean[place : place + gradient.size].reshape(gradient.shape))
            place += gradient.size
        layer.gradients = parts[0], parts[1]


def _weighted(layers: Sequence[digits.Layer]) -> list[digits.Weighted]:
    return [layer for layer in layers if isinstance(layer, digits.Weighted)]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="images of a process (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
