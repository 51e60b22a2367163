"""What the engines of the quantization benchmark share: the fp32 model, and which images serve which purpose.

Runs inside workers; imports no engine, so that what a setting's process weighs is its own engine's weight.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from . import digits, images
from .cache import ModelCache
from .graph import OPSET
from .networks import NETWORKS, REVISION, build
from .user_model import described

# Different images for calibration, agreement and timing, all from one seed of the user's.
CALIBRATION, AGREEMENT, TIMING = 1, 2, 3

AGREEMENT_IMAGES = 16

OUTPUT_VALUES = 1 << 14
"""Most values of an image's outputs that are compared; SSD300 has 218,300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A model file with images to judge it by: (n, channels, size, size) float32."""

    model: Path
    images: np.ndarray


Run = Callable[[np.ndarray], np.ndarray | Sequence[np.ndarray]]
"""Returns the outputs of a batch, each (batch, ...) float32; the next run may overwrite them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """A network ready to run.

    Attributes:
        parts: The models, the first of which is timed, with the images that each is judged by.
        runs: How to run each of them.
        feed: The batch that is timed.
        facts: What is known before it runs.
    """

    parts: Sequence[Part]
    runs: Sequence[Run]
    feed: np.ndarray
    facts: Mapping[str, Any]

    @property
    def items_per_step(self) -> int:
        """Return the images a step."""
        return len(self.feed)

    def step(self) -> None:
        """Run one batch."""
        self.runs[0](self.feed)

    def outputs(self) -> list[list[float]]:
        """Return the logits of every part's images, or what stands for many more outputs an image."""
        batch = len(self.feed)
        rows = [_rows(run, part.images, batch) for run, part in zip(self.runs, self.parts, strict=True)]
        together: list[list[float]] = np.concatenate(rows).astype(float).tolist()
        return together


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a builder reports: nothing to time, only facts."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing: the work was done when the model was made."""

    def outputs(self) -> list[list[float]]:
        """Return nothing."""
        return []


def build_fp32(*, network: str, seed: int, cache: str) -> Built:
    """Make sure that the fp32 model is in the cache; its path is the fact `model`, its size `model_bytes`."""
    return built(fp32_model(network, seed, ModelCache(Path(cache))), network, seed)


def built(model: Path, network: str, seed: int) -> Built:
    """Return what is reported of a model that is in the cache; `labels` are those of its outputs, if any."""
    if (user := described(network)) is not None:
        return Built(facts={"model": str(model), "model_bytes": model_bytes(model), "labels": user.labels()})
    labels = [fold.held_out_labels for fold in digits.folds(seed)] if network == digits.NAME else []
    facts = {"model": str(model), "model_bytes": model_bytes(model)}
    return Built(facts={**facts, "labels": np.concatenate(labels).tolist() if labels else None})


def fp32_model(network: str, seed: int, models: ModelCache) -> Path:
    """Return the path of the fp32 model, built where it is not cached, or of the user's own."""
    if (user := described(network)) is not None:
        return Path(user.file)
    if network == digits.NAME:
        name = f"{network}-seed{seed}-opset{OPSET}-r{digits.REVISION}"
        return models.get(name, lambda target: digits.build(seed, target))
    name = f"{network}-seed{seed}-opset{OPSET}-r{REVISION}.onnx"
    return models.get(name, lambda target: onnx.save(build(NETWORKS[network], seed), str(target)))


def stem_of(model: Path, network: str) -> str:
    """Return what the names of files made of a model begin with."""
    user = described(network)
    return model.stem if user is None else user.name


def model_bytes(model: Path) -> int:
    """Return the size of a model, which is one file or a folder of several."""
    files = [file for file in model.rglob("*") if file.is_file()] if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def quantized(
    source: Path, target: Path, *, network: str, seed: int, count: int, quantize: Callable[..., None]
) -> None:
    """Quantize a model, or each of the folds', into the path `target`.

    Args:
        source: The fp32 model.
        target: Where the quantized one shall lie.
        network: Which it is.
        seed: Of the images.
        count: How many images scales are taken from; those of digits are images that it was trained on.
        quantize: Takes a file, where its quantized form shall lie, and images.
    """
    if network != digits.NAME:
        quantize(source, target, draw(network, count, seed, CALIBRATION))
        return
    target.mkdir()
    for number, fold in enumerate(digits.folds(seed)):
        file = source / f"fold{number}.onnx"
        quantize(file, target / file.name, fold.training[:count])


def parts_of(model: Path, network: str, seed: int) -> list[Part]:
    """Return the model with its images for agreement, or each fold with the images held out from it."""
    if (user := described(network)) is not None:
        return [Part(model=model, images=user.judged(1000 * seed + AGREEMENT))]
    if network != digits.NAME:
        return [Part(model=model, images=draw(network, AGREEMENT_IMAGES, seed, AGREEMENT))]
    return [
        Part(model=model / f"fold{number}.onnx", images=fold.held_out)
        for number, fold in enumerate(digits.folds(seed))
    ]


def feed_of(parts: Sequence[Part], network: str, batch: int, seed: int) -> np.ndarray:
    """Return a batch to time."""
    if network in NETWORKS:
        return draw(network, batch, seed, TIMING)
    images = parts[0].images
    return np.resize(images, (batch, *images.shape[1:]))


def weights_of(network: str) -> str:
    """Say where a network's weights come from."""
    if network in NETWORKS:
        return "random"
    return "trained" if network == digits.NAME else "the user's"


def draw(network: str, count: int, seed: int, purpose: int) -> np.ndarray:
    """Draw images of a network's size, (count, 3, size, size) float32, others for each purpose.

    Of the user's model, take what it is calibrated by.
    """
    if (user := described(network)) is not None:
        return user.calibration(count, 1000 * seed + purpose)
    return images.draw(count, NETWORKS[network].size, 1000 * seed + purpose)


def _rows(run: Run, images: np.ndarray, batch: int) -> np.ndarray:
    """Return the outputs of images, a row each; they are run in batches of which the last is filled up."""
    batches = -(-len(images) // batch)
    filled = np.resize(images, (batches * batch, *images.shape[1:]))
    return np.concatenate([_flat(run(part)) for part in np.split(filled, batches)])[: len(images)]


def _flat(outputs: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Return a batch's outputs side by side; of a great many that are no logits, values at even distances."""
    arrays = [outputs] if isinstance(outputs, np.ndarray) else outputs
    if len(arrays) == 1 and arrays[0].ndim == 2:  # noqa: PLR2004 - images and classes
        return arrays[0].copy()
    row = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
    return row[:, :: -(-row.shape[1] // OUTPUT_VALUES)].copy()
