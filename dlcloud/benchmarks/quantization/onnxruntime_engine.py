"""Quantize and run the networks with ONNX Runtime; runs inside workers.

The int8 models are quantized statically: scales from the smallest and largest value that each activation
takes on calibration images, weights signed with a scale per output channel, activations unsigned. That is the
pair of types for which processors have had an instruction since AVX-512 VNNI: on an AMD EPYC with VNNI,
ResNet-50 ran at 3.2 times fp32 with it, at 1.4 with unsigned weights and at 0.8 with signed activations.
"""

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

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

from ..harness import hardware
from .cache import ModelCache
from .models import (
    Built,
    Inference,
    Run,
    built,
    feed_of,
    fp32_model,
    model_bytes,
    parts_of,
    quantized,
    stem_of,
    weights_of,
)

# With these the product of an unsigned and a signed byte is summed without passing through 16 bits, where the
# sum of two products can saturate. Without them a bit of the weights is given up instead.
# Source: ONNX Runtime documentation, "Quantize ONNX models", on U8S8, AVX2 and `reduce_range`.
EXACT_FLAGS = {"avx512_vnni", "avx_vnni", "asimddp"}

WEIGHTED = {
    **dict.fromkeys(("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "ConvInteger"), "int8"),
    **dict.fromkeys(("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"), "fp32"),
}
"""What the operators that do the work compute in, as ONNX Runtime names them in the graph that it runs."""

QUIET = 3
"""ONNX Runtime's log level for errors only."""


def build_int8(*, network: str, seed: int, cache: str, calibration_images: int) -> Built:
    """Make sure that the int8 model is in the cache, quantized from the fp32 one."""
    models = ModelCache(Path(cache))
    source = fp32_model(network, seed, models)
    narrow = not EXACT_FLAGS & set(hardware.cpu_flags())
    kind = f"int8-minmax{calibration_images}-{'s7' if narrow else 's8'}-ort{onnxruntime.__version__}"
    name = f"{stem_of(source, network)}-{kind}.onnx"
    quantize = partial(_quantize, narrow=narrow)
    quantize_all = partial(quantized, network=network, seed=seed, count=calibration_images, quantize=quantize)
    path = models.get(name, lambda target: quantize_all(source, target))
    return built(path, network, seed)


def infer_fp32(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the fp32 model for timing."""
    return _infer(Path(model), network, batch, threads, seed)


def infer_int8(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the int8 model for timing."""
    return _infer(Path(model), network, batch, threads, seed)


def prove(*, model: str, network: str, precision: str, threads: int, seed: int) -> Built:
    """Say by what operators a model's layers with weights are computed, from a profile of one run."""
    del precision  # the file tells
    part = parts_of(Path(model), network, seed)[0]
    with tempfile.TemporaryDirectory() as folder:
        options = _options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = onnxruntime.InferenceSession(str(part.model), options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: part.images[:1]})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    names = [event.get("args", {}).get("op_name") for event in events if event["cat"] == "Node"]
    return Built(
        facts={"layers_computed_in": dict(Counter(WEIGHTED[name] for name in names if name in WEIGHTED))}
    )


def _infer(model: Path, network: str, batch: int, threads: int, seed: int) -> Inference:
    parts = parts_of(model, network, seed)
    facts = {
        "model_bytes": model_bytes(model),
        "weights": weights_of(network),
        "engine": f"ONNX Runtime {onnxruntime.__version__}",
        "threads": threads,
    }
    runs = [_run(part.model, threads) for part in parts]
    return Inference(parts=parts, runs=runs, feed=feed_of(parts, network, batch, seed), facts=facts)


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = QUIET
    return options


def _run(model: Path, threads: int) -> Run:
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(model), _options(threads), providers=providers)

    name = session.get_inputs()[0].name

    def run(images: np.ndarray) -> list[np.ndarray]:
        outputs: list[np.ndarray] = session.run(None, {name: images})
        return outputs

    return run


class _Images(CalibrationDataReader):  # type: ignore[misc]  # it ships no types
    """Hands out calibration images one at a time."""

    def __init__(self, name: str, calibration: np.ndarray) -> None:
        self._name = name
        self._remaining: Iterator[np.ndarray] = iter(calibration)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next image as a batch of one, or None at the end."""
        image = next(self._remaining, None)
        return None if image is None else {self._name: image[None]}


def _input_of(model: Path) -> str:
    """Return the name of a model's input."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    name: str = next(each.name for each in graph.input if each.name not in weights)
    return name


def _quantize(source: Path, target: Path, calibration: np.ndarray, *, narrow: bool) -> None:
    """Quantize every layer that has an int8 kernel."""
    # It advises a pre-processing that folds batch normalisation; these graphs have none left.
    logging.getLogger().setLevel(logging.ERROR)
    # It writes copies of the model to temporary files, which may be larger than a machine's /tmp.
    tempfile.tempdir = str(target.parent)
    quantize_static(
        str(source),
        str(target),
        _Images(_input_of(source), calibration),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=narrow,
        calibrate_method=CalibrationMethod.MinMax,
    )
