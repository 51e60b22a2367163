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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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

from ..harness import hardware
from ..harness.case import UntimedWorkload
from ..harness.preparation import size_of
from .inference import Inference, InferenceJob, Run
from .models import BuildJob, build_quantized, draw_feed, fp32_model, load_parts
from .onnx_graphs import measure_peak

# With these the product of an unsigned and a signed byte is summed without passing through 16 bits, where the
# sum of two products can saturate. Without them a bit of the weights is given up instead.
# Source: ONNX Runtime documentation, "Quantize ONNX models", on U8S8, AVX2 and `reduce_range`.
EXACT_FLAGS = {"avx512_vnni", "avx_vnni", "asimddp"}

WEIGHTED = {
    **dict.fromkeys(("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "ConvInteger"), "int8"),
    **dict.fromkeys(("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"), "fp32"),
}
"""The precision of the operators that do the work, as ONNX Runtime names them in the graph that it runs."""

PROVIDERS = ["CPUExecutionProvider"]

QUIET = 3
"""ONNX Runtime's log level for errors only."""


def build_int8(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    job = BuildJob(**arguments)
    narrow = not EXACT_FLAGS & set(hardware.cpu_flags())
    kind = f"{'s7' if narrow else 's8'}-ort{onnxruntime.__version__}.onnx"
    return build_quantized(job, fp32_model(job), kind, partial(_quantize, narrow=narrow))


def infer(**arguments: Any) -> Inference:  # noqa: ANN401 - those of InferenceJob
    job = InferenceJob(**arguments)
    parts = load_parts(job.path, job.network, job.seed)
    return Inference(
        parts=parts,
        runs=[_make_run(part.model, job.threads) for part in parts],
        feed=draw_feed(parts, job),
        facts=job.facts(f"ONNX Runtime {onnxruntime.__version__}", size_of(job.path)),
        peak=partial(measure_peak, partial(_load, threads=job.threads), job.precision),
    )


def prove(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of InferenceJob
    """Report the operators that compute a model's layers with weights, from a profile of one run."""
    job = InferenceJob(**arguments)
    part = load_parts(job.path, job.network, job.seed)[0]
    with tempfile.TemporaryDirectory() as folder:
        options = _session_options(job.threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = onnxruntime.InferenceSession(str(part.model), options, providers=PROVIDERS)
        session.run(None, {session.get_inputs()[0].name: part.images[:1]})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    names = [event.get("args", {}).get("op_name") for event in events if event["cat"] == "Node"]
    precisions = Counter(WEIGHTED[name] for name in names if name in WEIGHTED)
    return UntimedWorkload(facts={"layers_computed_in": dict(precisions)})


def _session_options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = QUIET
    return options


def _make_run(model: Path, threads: int) -> Run:
    session = onnxruntime.InferenceSession(str(model), _session_options(threads), providers=PROVIDERS)
    name = session.get_inputs()[0].name

    def run(images: np.ndarray) -> list[np.ndarray]:
        outputs: list[np.ndarray] = session.run(None, {name: images})
        return outputs

    return run


def _load(graph: bytes, *, threads: int) -> Callable[[Mapping[str, np.ndarray]], object]:
    session = onnxruntime.InferenceSession(graph, _session_options(threads), providers=PROVIDERS)
    return lambda inputs: session.run(None, dict(inputs))


class _Images(CalibrationDataReader):  # type: ignore[misc]  # it ships no types
    """Hands out calibration images one at a time."""

    def __init__(self, name: str, calibration: np.ndarray) -> None:
        self._name = name
        self._remaining: Iterator[np.ndarray] = iter(calibration)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self._remaining, None)
        return None if image is None else {self._name: image[None]}


def _read_input_name(model: Path) -> str:
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    name: str = next(value.name for value in graph.input if value.name not in weights)
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
        _Images(_read_input_name(source), calibration),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=narrow,
        calibrate_method=CalibrationMethod.MinMax,
    )
