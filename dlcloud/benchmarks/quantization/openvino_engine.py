"""Quantize and run the networks with OpenVINO and NNCF; runs inside workers.

The int8 models take the scale of each activation from the smallest and largest value that it has on the
calibration images. NNCF's default narrows that range, and lost 0.7 points of accuracy on a small VGG trained
on digits where the full range lost none; its quick correction of biases lost 0.3.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # lies only in the benchmark's own environment

from .cache import ModelCache
from .kernels import told_by_onednn
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
from .user_model import described

GRAPH = "model.xml"
"""The graph of a cached model; its weights lie beside it, in a file of the same stem."""

WEIGHTED = {"Convolution", "FullyConnected", "MatMul"}
"""The layers that do the work, as OpenVINO names them in the graph that it runs."""


def build_fp32(*, network: str, seed: int, cache: str) -> Built:
    """Make sure that the fp32 model is there, in a form that OpenVINO reads at once."""
    return built(_readable(network, seed, ModelCache(Path(cache))), network, seed)


def build_int8(*, network: str, seed: int, cache: str, calibration_images: int) -> Built:
    """Make sure that the int8 model is in the cache, quantized from the fp32 one."""
    import nncf  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy, and only builders need it

    models = ModelCache(Path(cache))
    source = _readable(network, seed, models)
    version = openvino.__version__.partition("-")[0]
    name = f"{stem_of(source, network)}-int8-minmax{calibration_images}-ov{version}-nncf{nncf.__version__}"
    quantize_all = partial(
        quantized, network=network, seed=seed, count=calibration_images, quantize=_quantize
    )
    path = models.get(name, lambda target: quantize_all(source, target))
    return built(path, network, seed)


def infer_fp32(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the fp32 model for timing in fp32."""
    return _infer(model, network, batch, threads, seed, "f32", computed_in={"f32"})


def infer_bf16(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the fp32 model for timing in bf16."""
    return _infer(model, network, batch, threads, seed, "bf16", computed_in={"bf16"})


def infer_int8(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the int8 model for timing."""
    return _infer(model, network, batch, threads, seed, "f32", computed_in={"i8", "u8"})


def prove(*, model: str, network: str, precision: str, threads: int, seed: int) -> Built:
    """Say by what instructions and kernels a model is computed; for a process with ONEDNN_VERBOSE."""
    part = parts_of(Path(model), network, seed)[0]
    image = part.images[:1]
    hint = "bf16" if precision == "bf16" else "f32"
    return Built(facts=told_by_onednn(lambda: _run(_compiled(part.model, image.shape, threads, hint))(image)))


def _infer(  # noqa: PLR0917 - what the three above pass on
    model: str, network: str, batch: int, threads: int, seed: int, precision: str, *, computed_in: set[str]
) -> Inference:
    """Load a model and make sure that its layers are computed in what they are timed as.

    Raises:
        ValueError: A layer is not.
    """
    parts = parts_of(Path(model), network, seed)
    feed = feed_of(parts, network, batch, seed)
    compiled = [_compiled(part.model, feed.shape, threads, precision) for part in parts]
    actual = _computed_in(compiled[0].get_runtime_model())
    if not actual or set(actual) - computed_in:
        raise ValueError(f"layers are computed in {actual}, not in {' or '.join(sorted(computed_in))}")
    facts = {
        "model_bytes": model_bytes(Path(model)),
        "weights": weights_of(network),
        "engine": f"OpenVINO {openvino.__version__.partition('-')[0]}",
        "threads": compiled[0].get_property("INFERENCE_NUM_THREADS"),
        "layers_computed_in": actual,
    }
    return Inference(parts=parts, runs=[_run(each) for each in compiled], feed=feed, facts=facts)


def _compiled(model: Path, shape: tuple[int, ...], threads: int, precision: str) -> Any:  # noqa: ANN401 - no types
    """Compile a model, an ONNX file or a folder with an OpenVINO graph, for images of one shape."""
    core = openvino.Core()
    graph = _read(model)
    graph.reshape(shape)
    # Without the first, OpenVINO takes bf16 for fp32 wherever the processor has it.
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    return core.compile_model(graph, "CPU", settings)


def _readable(network: str, seed: int, models: ModelCache) -> Path:
    """Return the fp32 model, an ONNX file; of the user's, what is none is converted."""
    source = fp32_model(network, seed, models)
    if described(network) is None or source.suffix == ".onnx":
        return source
    version = openvino.__version__.partition("-")[0]
    return models.get(f"{stem_of(source, network)}-ov{version}", lambda target: _convert(source, target))


def _convert(source: Path, target: Path) -> None:
    """Write an exported program of PyTorch or a SavedModel as graph and weights into the folder `target`."""
    program: Any = source
    if source.suffix == ".pt2":
        import torch  # noqa: PLC0415 - one format's

        program = torch.export.load(source)
    target.mkdir()
    openvino.save_model(openvino.convert_model(program), target / GRAPH, compress_to_fp16=False)


def _read(model: Path) -> Any:  # noqa: ANN401 - no types
    """Read an ONNX file, or a folder with a graph of OpenVINO."""
    return openvino.Core().read_model(model / GRAPH if model.is_dir() else model)


def _run(compiled: Any) -> Run:  # noqa: ANN401 - no types
    request = compiled.create_infer_request()

    def run(images: np.ndarray) -> list[np.ndarray]:
        return list(request.infer({0: images}, share_inputs=True, share_outputs=True).values())

    return run


def _computed_in(graph: Any) -> dict[str, int]:  # noqa: ANN401 - it ships no types that mypy sees here
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
