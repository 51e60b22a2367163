"""What the engines of the quantization benchmark share: the fp32 model, and which images serve which purpose.

Runs inside workers; imports no engine, so that what a setting's process weighs is its own engine's weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from . import images
from .models import ModelCache
from .networks import NETWORKS, OPSET, REVISION, build

# Different images for calibration, agreement and timing, all from one seed of the user's.
CALIBRATION, AGREEMENT, TIMING = 1, 2, 3

AGREEMENT_IMAGES = 16


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
    return built(fp32_model(network, seed, ModelCache(Path(cache))))


def built(model: Path) -> Built:
    """Return what is reported of a model that is in the cache."""
    return Built(facts={"model": str(model), "model_bytes": model_bytes(model)})


def fp32_model(network: str, seed: int, models: ModelCache) -> Path:
    """Return the path of the fp32 model, built where it is not cached."""
    name = f"{network}-seed{seed}-opset{OPSET}-r{REVISION}.onnx"
    return models.get(name, lambda target: onnx.save(build(NETWORKS[network], seed), str(target)))


def model_bytes(model: Path) -> int:
    """Return the size of a model, which is one file or a folder of several."""
    files = model.iterdir() if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def draw(network: str, count: int, seed: int, purpose: int) -> np.ndarray:
    """Draw images of a network's size: (count, 3, size, size) float32, others for each purpose."""
    return images.draw(count, NETWORKS[network].size, 1000 * seed + purpose)
