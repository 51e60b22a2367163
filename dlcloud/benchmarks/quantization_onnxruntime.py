"""Build, quantize and run the networks with ONNX Runtime; runs inside workers.

The int8 models are quantized statically: scales from the smallest and largest value that each activation
takes on calibration images, weights signed with a scale per output channel, activations unsigned. That is the
pair of types for which processors have had an instruction since AVX-512 VNNI: on an AMD EPYC with VNNI,
ResNet-50 ran at 3.2 times fp32 with it, at 1.4 with unsigned weights and at 0.8 with signed activations.
"""

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from . import hardware, images
from .models import ModelCache
from .networks import NETWORKS, OPSET, REVISION, build

# With these the product of an unsigned and a signed byte is summed without passing through 16 bits, where the
# sum of two products can saturate. Without them a bit of the weights is given up instead.
# Source: ONNX Runtime documentation, "Quantize ONNX models", on U8S8, AVX2 and `reduce_range`.
EXACT_FLAGS = {"avx512_vnni", "avx_vnni", "asimddp"}

# Different images for calibration, agreement and timing, all from one seed of the user's.
CALIBRATION, AGREEMENT, TIMING = 1, 2, 3

AGREEMENT_IMAGES = 16
QUIET = 3
"""ONNX Runtime's log level for errors only."""


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


class Inference:
    """A network ready to run on a batch of synthetic images."""

    def __init__(self, *, model: Path, network: str, batch: int, threads: int, seed: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = QUIET
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        size = NETWORKS[network].size
        self._feed = {"images": images.draw(batch, size, _seed(seed, TIMING))}
        self._agreement = images.draw(AGREEMENT_IMAGES, size, _seed(seed, AGREEMENT))
        self.items_per_step = batch
        self.facts: Mapping[str, Any] = {
            "model_bytes": model.stat().st_size,
            "weights": "random",
            "engine": f"ONNX Runtime {onnxruntime.__version__}",
            "threads": threads,
        }

    def step(self) -> None:
        """Run one batch."""
        self._session.run(None, self._feed)

    def outputs(self) -> list[list[float]]:
        """Return the logits of AGREEMENT_IMAGES images, one at a time."""
        rows = (self._session.run(None, {"images": image[None]})[0][0] for image in self._agreement)
        return [[float(value) for value in row] for row in rows]


def build_fp32(*, network: str, seed: int, cache: str) -> Built:
    """Make sure that the fp32 model is in the cache; its path is the fact `model`."""
    path = _fp32(network, seed, ModelCache(Path(cache)))
    return Built(facts={"model": str(path)})


def build_int8(*, network: str, seed: int, cache: str, calibration_images: int) -> Built:
    """Make sure that the int8 model is in the cache, quantized from the fp32 one."""
    models = ModelCache(Path(cache))
    source = _fp32(network, seed, models)
    narrow = not EXACT_FLAGS & set(hardware.cpu_flags())
    kind = f"int8-minmax{calibration_images}-{'s7' if narrow else 's8'}-ort{onnxruntime.__version__}"
    name = f"{source.stem}-{kind}.onnx"
    sizes = NETWORKS[network].size
    calibration = images.draw(calibration_images, sizes, _seed(seed, CALIBRATION))
    path = models.get(name, lambda target: _quantize(source, target, calibration, narrow=narrow))
    return Built(facts={"model": str(path)})


def infer(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load a model for timing."""
    return Inference(model=Path(model), network=network, batch=batch, threads=threads, seed=seed)


class _Images(CalibrationDataReader):  # type: ignore[misc]  # it ships no types
    """Hands out calibration images one at a time."""

    def __init__(self, calibration: np.ndarray) -> None:
        self._remaining: Iterator[np.ndarray] = iter(calibration)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next image as a batch of one, or None at the end."""
        image = next(self._remaining, None)
        return None if image is None else {"images": image[None]}


def _fp32(network: str, seed: int, models: ModelCache) -> Path:
    name = f"{network}-seed{seed}-opset{OPSET}-r{REVISION}.onnx"
    return models.get(name, lambda target: onnx.save(build(NETWORKS[network], seed), str(target)))


def _quantize(source: Path, target: Path, calibration: np.ndarray, *, narrow: bool) -> None:
    """Quantize every layer that has an int8 kernel."""
    # It advises a pre-processing that folds batch normalisation; these graphs have none left.
    logging.getLogger().setLevel(logging.ERROR)
    # It writes copies of the model to temporary files, which may be larger than a machine's /tmp.
    tempfile.tempdir = str(target.parent)
    quantize_static(
        str(source),
        str(target),
        _Images(calibration),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=narrow,
        calibrate_method=CalibrationMethod.MinMax,
    )


def _seed(seed: int, purpose: int) -> int:
    return 1000 * seed + purpose
