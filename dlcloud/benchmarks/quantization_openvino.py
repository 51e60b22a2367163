"""Quantize and run the networks with OpenVINO and NNCF; runs inside workers.

The int8 models take the scale of each activation from the smallest and largest value that it has on the
calibration images. NNCF's default narrows that range, and lost 0.7 points of accuracy on a small VGG trained
on digits where the full range lost none; its quick correction of biases lost 0.3.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # lies only in the benchmark's own environment

from .models import ModelCache
from .quantization_models import (
    AGREEMENT,
    AGREEMENT_IMAGES,
    CALIBRATION,
    TIMING,
    Built,
    built,
    draw,
    fp32_model,
    model_bytes,
)

GRAPH = "model.xml"
"""The graph of a cached model; its weights lie beside it, in a file of the same stem."""

WEIGHTED = {"Convolution", "FullyConnected", "MatMul"}
"""The layers that do the work, as OpenVINO names them in the graph that it runs."""


class Inference:
    """A network ready to run on a batch of synthetic images.

    Args:
        model: An ONNX file, or a folder with an OpenVINO graph.
        network: Whose images it takes.
        batch: Images a step.
        threads: Threads of the engine.
        seed: Of the images.
        precision: What layers that are not quantized are computed in: `f32` or `bf16`.
    """

    def __init__(
        self, *, model: Path, network: str, batch: int, threads: int, seed: int, precision: str
    ) -> None:
        core = openvino.Core()
        graph = core.read_model(model / GRAPH if model.is_dir() else model)
        self._feed = draw(network, batch, seed, TIMING)
        graph.reshape(self._feed.shape)
        # Without the hint, OpenVINO takes bf16 for fp32 wherever the processor has it.
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        compiled = core.compile_model(graph, "CPU", settings)
        self._request = compiled.create_infer_request()
        self._agreement = draw(network, AGREEMENT_IMAGES, seed, AGREEMENT)
        self.items_per_step = batch
        self.facts: Mapping[str, Any] = {
            "model_bytes": model_bytes(model),
            "weights": "random",
            "engine": f"OpenVINO {openvino.__version__.partition('-')[0]}",
            "threads": compiled.get_property("INFERENCE_NUM_THREADS"),
            "layers_computed_in": _computed_in(compiled.get_runtime_model()),
        }

    def step(self) -> None:
        """Run one batch."""
        self._run(self._feed)

    def outputs(self) -> list[list[float]]:
        """Return the logits of AGREEMENT_IMAGES images, in batches of which the last is filled up."""
        batch = len(self._feed)
        batches = -(-AGREEMENT_IMAGES // batch)
        filled = np.resize(self._agreement, (batches * batch, *self._agreement.shape[1:]))
        logits = np.concatenate([self._run(part).copy() for part in np.split(filled, batches)])
        rows: list[list[float]] = logits[:AGREEMENT_IMAGES].astype(float).tolist()
        return rows

    def _run(self, images: np.ndarray) -> np.ndarray:
        """Return the logits (batch, CLASSES) float32; the next run overwrites them."""
        return self._request.infer({0: images}, share_inputs=True, share_outputs=True)[0]


def build_int8(*, network: str, seed: int, cache: str, calibration_images: int) -> Built:
    """Make sure that the int8 model is in the cache, quantized from the fp32 one."""
    import nncf  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy, and only builders need it

    models = ModelCache(Path(cache))
    source = fp32_model(network, seed, models)
    version = openvino.__version__.partition("-")[0]
    name = f"{source.stem}-int8-minmax{calibration_images}-ov{version}-nncf{nncf.__version__}"
    calibration = draw(network, calibration_images, seed, CALIBRATION)
    return built(models.get(name, lambda target: _quantize(source, target, calibration)))


def infer_fp32(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the fp32 model for timing in fp32."""
    return _infer(model, network, batch, threads, seed, "f32", computed_in={"f32"})


def infer_bf16(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the fp32 model for timing in bf16."""
    return _infer(model, network, batch, threads, seed, "bf16", computed_in={"bf16"})


def infer_int8(*, model: str, network: str, batch: int, threads: int, seed: int) -> Inference:
    """Load the int8 model for timing."""
    return _infer(model, network, batch, threads, seed, "f32", computed_in={"i8", "u8"})


def _infer(  # noqa: PLR0917 - what the three above pass on
    model: str, network: str, batch: int, threads: int, seed: int, precision: str, *, computed_in: set[str]
) -> Inference:
    """Load a model and make sure that its layers are computed in what they are timed as.

    Raises:
        ValueError: A layer is not.
    """
    inference = Inference(
        model=Path(model), network=network, batch=batch, threads=threads, seed=seed, precision=precision
    )
    actual = inference.facts["layers_computed_in"]
    if not actual or set(actual) - computed_in:
        raise ValueError(f"layers are computed in {actual}, not in {' or '.join(sorted(computed_in))}")
    return inference


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
        openvino.Core().read_model(source),
        nncf.Dataset([image[None] for image in calibration]),
        subset_size=len(calibration),
        fast_bias_correction=False,
        advanced_parameters=full_range,
    )
    target.mkdir()
    # What stays fp32, such as the biases, is kept as it is.
    openvino.save_model(quantized, target / GRAPH, compress_to_fp16=False)
