"""Quantize and run the networks with OpenVINO and NNCF; runs inside workers.

The int8 models take the scale of each activation from the smallest and largest value that it has on the
calibration images. NNCF's default narrows that range, and lost 0.7 points of accuracy on a small VGG trained
on digits where the full range lost none; its quick correction of biases lost 0.3.
"""

import io
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # only in the benchmark's own environment

from ..harness.case import UntimedWorkload
from ..harness.kernels import capture_output, summarize_onednn_log
from ..harness.preparation import size_of
from .inference import Inference, InferenceJob, Run
from .models import BuildJob, build_quantized, draw_feed, fp32_model, load_parts
from .onnx_graphs import measure_peak
from .settings import is_user_model

VERSION = openvino.__version__.partition("-")[0]

GRAPH = "model.xml"
"""The graph of a cached model; its weights lie next to it, in a file of the same stem."""

WEIGHTED = {"Convolution", "FullyConnected", "MatMul"}
"""The layers that do the work, as OpenVINO names them in the graph that it runs."""

PRECISIONS = {"fp32": ("f32", {"f32"}), "bf16": ("bf16", {"bf16"}), "int8": ("f32", {"i8", "u8"})}
"""By precision, OpenVINO's hint and the types that layers may be computed in."""


def build_fp32(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    """Make sure that the fp32 model is there, in a form that OpenVINO reads immediately."""
    job = BuildJob(**arguments)
    return job.report(_readable_model(job))


def build_int8(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    import nncf  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy, and only builders need it

    job = BuildJob(**arguments)
    return build_quantized(job, _readable_model(job), f"ov{VERSION}-nncf{nncf.__version__}", _quantize)


def prove(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of InferenceJob
    """Report the instructions and kernels that compute a model; for a process with ONEDNN_VERBOSE."""
    job = InferenceJob(**arguments)
    part = load_parts(job.path, job.network, job.seed)[0]
    with capture_output() as log:
        _make_run(_compile(part.model, (1, *part.images.shape[1:]), job))(part.images[:1])
    return UntimedWorkload(facts=summarize_onednn_log(log))


def infer(**arguments: Any) -> Inference:  # noqa: ANN401 - those of InferenceJob
    """Load a model for timing and check that its layers are computed in its precision.

    Raises:
        ValueError: A layer is not.
    """
    job = InferenceJob(**arguments)
    parts = load_parts(job.path, job.network, job.seed)
    feed = draw_feed(parts, job)
    models = [_compile(part.model, feed.shape, job) for part in parts]
    types = _count_types(models[0].get_runtime_model())
    expected = PRECISIONS[job.precision][1]
    if not types or set(types) - expected:
        raise ValueError(f"layers are computed in {types}, not in {' or '.join(sorted(expected))}")
    threads = models[0].get_property("INFERENCE_NUM_THREADS")
    facts = job.facts(f"OpenVINO {VERSION}", size_of(job.path), threads)
    return Inference(
        parts=parts,
        runs=[_make_run(model) for model in models],
        feed=feed,
        facts={**facts, "layers_computed_in": types},
        peak=partial(measure_peak, partial(_load, job=job), job.precision),
    )


def _compile(model: Path, shape: tuple[int, ...], job: InferenceJob) -> Any:  # noqa: ANN401 - no types
    """Compile a model, an ONNX file or a folder with an OpenVINO graph, for images of one shape."""
    graph = _read(model)
    graph.reshape(shape)
    return _compile_graph(graph, job)


def _load(graph: bytes, *, job: InferenceJob) -> Callable[[Mapping[str, np.ndarray]], object]:
    request = _compile_graph(openvino.Core().read_model(io.BytesIO(graph)), job).create_infer_request()
    return lambda inputs: request.infer(dict(inputs), share_inputs=True, share_outputs=True)


def _compile_graph(graph: Any, job: InferenceJob) -> Any:  # noqa: ANN401 - no types
    # Without the first, OpenVINO takes bf16 for fp32 wherever the processor has it.
    properties = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[job.precision][0],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
    }
    return openvino.Core().compile_model(graph, "CPU", properties)


def _readable_model(job: BuildJob) -> Path:
    """Return the fp32 model, an ONNX file; the user's is converted if it is none."""
    source = fp32_model(job)
    if not is_user_model(job.network) or source.suffix == ".onnx":
        return source
    return job.models.get(f"{job.stem(source)}-ov{VERSION}", lambda target: _convert(source, target))


def _convert(source: Path, target: Path) -> None:
    """Write an exported program of PyTorch or a SavedModel as graph and weights into the folder `target`."""
    program: Any = source
    if source.suffix == ".pt2":
        import torch  # noqa: PLC0415 - one format's

        program = torch.export.load(source)
    target.mkdir()
    openvino.save_model(openvino.convert_model(program), target / GRAPH, compress_to_fp16=False)


def _read(model: Path) -> Any:  # noqa: ANN401 - no types
    return openvino.Core().read_model(model / GRAPH if model.is_dir() else model)


def _make_run(model: Any) -> Run:  # noqa: ANN401 - no types
    request = model.create_infer_request()

    def run(images: np.ndarray) -> list[np.ndarray]:
        return list(request.infer({0: images}, share_inputs=True, share_outputs=True).values())

    return run


def _count_types(graph: Any) -> dict[str, int]:  # noqa: ANN401 - no types
    """Count the layers with weights by the type that they are computed in, in the graph as it runs."""
    notes = [operation.get_rt_info() for operation in graph.get_ops()]
    return dict(
        Counter(str(note["runtimePrecision"].value) for note in notes if note["layerType"].value in WEIGHTED)
    )


def _quantize(source: Path, target: Path, calibration: np.ndarray) -> None:
    """Quantize every layer that has an int8 kernel and write graph and weights into the folder `target`."""
    import nncf  # noqa: PLC0415 - as above
    from nncf.quantization.range_estimator import (  # type: ignore[import-not-found]  # noqa: PLC0415
        RangeEstimatorParametersSet,
    )

    full_range = nncf.AdvancedQuantizationParameters(
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX
    )
    quantized = nncf.quantize(
        _read(source),
        nncf.Dataset([image[None] for image in calibration]),
        subset_size=len(calibration),
        fast_bias_correction=False,
        advanced_parameters=full_range,
    )
    target.mkdir()
    # What stays fp32, such as the biases, is kept as it is.
    openvino.save_model(quantized, target / GRAPH, compress_to_fp16=False)
