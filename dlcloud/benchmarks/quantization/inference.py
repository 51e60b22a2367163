"""Run a model on images, synthetic ones where there is no data set: for timing, and to compare outputs.

Imports no engine and no format of models: BigDL's old Python, too, runs it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..harness.roofline import Peak
from .settings import is_user_model

DIGITS = "digits"
"""The one of the benchmark's own networks that is trained."""

CHANNELS = {1, 3, 4}
"""How many an image may have; an input with another shape is no image."""

OUTPUT_VALUES = 1 << 14
"""Most values of an image's outputs that are compared; SSD300 has 218,300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceJob:
    """What a worker runs."""

    model: str  # path of the model, a file or a folder
    network: str  # name of the network, or path of the description of the user's model
    precision: str  # what it is computed in, such as int8
    threads: int
    seed: int  # of the images
    batch: int = 1  # images a step
    device: str = "cpu"  # cpu or cuda

    @property
    def path(self) -> Path:
        return Path(self.model)

    @property
    def weights(self) -> str:
        """Where the network's weights come from."""
        if is_user_model(self.network):
            return "the user's"
        return "trained" if self.network == DIGITS else "random"

    def facts(self, engine: str, size_bytes: int, threads: int | None = None) -> dict[str, Any]:
        """Return the facts that all engines report; `threads` where the engine runs on others than asked."""
        return {
            "model_bytes": size_bytes,
            "weights": self.weights,
            "engine": engine,
            "threads": self.threads if threads is None else threads,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A model file with images to judge it by: (n, channels, size, size) float32."""

    model: Path
    images: np.ndarray


Run = Callable[[np.ndarray], np.ndarray | Sequence[np.ndarray]]
"""Returns the outputs of a batch, each (batch, ...) float32; the next run may overwrite them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """A network ready to run."""

    parts: Sequence[Part]  # the models, the first of which is timed, with the images that each is judged by
    runs: Sequence[Run]  # how to run each of them
    feed: np.ndarray  # the batch that is timed
    facts: Mapping[str, Any]
    # Measures what the engine reaches at best in about this many seconds; None if it cannot.
    peak: Callable[[float], Peak] | None = None

    def measure_peak(self, seconds: float) -> Peak | None:
        return None if self.peak is None else self.peak(seconds)

    @property
    def items_per_step(self) -> int:
        return len(self.feed)

    def step(self) -> None:
        self.runs[0](self.feed)

    def outputs(self) -> list[list[float]]:
        """Return the logits of every part's images; of a model with many more outputs, a sample of these."""
        batch = len(self.feed)
        rows = [_run_all(run, part.images, batch) for run, part in zip(self.runs, self.parts, strict=True)]
        outputs: list[list[float]] = np.concatenate(rows).astype(float).tolist()
        return outputs


def repeat_images(images: np.ndarray, count: int) -> np.ndarray:
    """Return `count` images, the given ones over and over."""
    return np.resize(images, (count, *images.shape[1:]))


def _run_all(run: Run, images: np.ndarray, batch: int) -> np.ndarray:
    """Return the outputs of images, a row each; they are run in batches of which the last is filled up."""
    batches = -(-len(images) // batch)
    filled = repeat_images(images, batches * batch)
    return np.concatenate([_flatten(run(part)) for part in np.split(filled, batches)])[: len(images)]


def _flatten(outputs: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Return a batch's outputs side by side; of many more values than logits have, some at even distances."""
    arrays = [outputs] if isinstance(outputs, np.ndarray) else outputs
    if len(arrays) == 1 and arrays[0].ndim == 2:  # noqa: PLR2004 - images and classes
        return arrays[0].copy()
    row = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
    return row[:, :: -(-row.shape[1] // OUTPUT_VALUES)].copy()


def draw_images(count: int, size: int, seed: int) -> np.ndarray:
    """Draw images that differ in structure as photographs do: patches of several sizes, and grain.

    (count, 3, size, size) float32, each image with mean 0 and variance 1, the usual normalised input.
    """
    generator = np.random.default_rng(seed)
    images = np.zeros((count, 3, size, size), dtype=np.float32)
    for cells in (2, 4, 8, 16, size):
        images += _draw_patches(generator, count, size, cells)
    images -= images.mean(axis=(1, 2, 3), keepdims=True)
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return images


def draw_shaped_images(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Draw images of a shape, channels first or last: (count, *shape) float32.

    Raises:
        ValueError: The shape is not that of an image.
    """
    if len(shape) == 3 and shape[0] in CHANNELS:  # noqa: PLR2004 - channels and two sides
        return np.ascontiguousarray(_draw_channels(shape[0], shape[1:], count, seed))
    if len(shape) == 3 and shape[2] in CHANNELS:  # noqa: PLR2004 - as above
        return np.ascontiguousarray(_draw_channels(shape[2], shape[:2], count, seed).transpose(0, 2, 3, 1))
    raise ValueError(f"an input of shape {list(shape)} is not an image: give --data")


def _draw_channels(channels: int, sides: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    images = draw_images(count, max(sides), seed)
    return images[:, np.arange(channels) % images.shape[1], : sides[0], : sides[1]]


def _draw_patches(generator: np.random.Generator, count: int, size: int, cells: int) -> np.ndarray:
    """Draw random colours on a grid of cells by cells, each image with its own contrast."""
    coarse = generator.standard_normal((count, 3, cells, cells), dtype=np.float32)
    coarse *= generator.uniform(0.1, 1.0, size=(count, 1, 1, 1)).astype(np.float32)
    places = np.arange(size) * cells // size
    return coarse[:, :, places[:, None], places[None, :]]
