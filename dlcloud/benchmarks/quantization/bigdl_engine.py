"""Quantize and run the networks with BigDL on Spark; runs inside workers that have their own environment.

BigDL's Java part computes; Python passes it a batch and receives the logits. fp32 is multiplied by the MKL
that it includes, int8 by its own BigQuant.

Its Python is too old for onnx: `export` runs in the environment of the other engines and writes networks as
plain arrays. A folder `partN` for each model has `layers.json`, a list of {op, name, sources, attributes,
weights}; the arrays `weights.npz`; and `images.npy`, the images that the model is judged by.

That MKL is older than today's AMD processors and takes a slow path on them unless it is given their type,
which the fact `mkl_debug_cpu_type` records.
"""

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import hardware, usage
from ..harness.case import UntimedWorkload
from ..harness.preparation import ModelCache
from ..harness.roofline import ELEMENT_BYTES, Peak, best_product, best_rate
from .inference import Inference, InferenceJob, Part, repeat_images

VERSION = "2.4.0"

LAYERS_REVISION, REVISION = 1, 1
"""Count changes of the export and of the models; parts of the names of cached folders."""

SUPPORTED = {"Conv", "Gemm", "Relu", "MaxPool", "Flatten", "Add", "GlobalAveragePool"}
"""ONNX's operators that BigDL has a layer for."""

# Spark 3.1 reaches into Java's own packages, which Java 17 has closed.
# Source: Apache Spark, JavaModuleOptions, of the releases that support Java 17.
OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip

PIECE_BYTES = 64 << 20
"""Most that is passed to Java in one call; Py4J counts bits of text in 32 bits, and fails from 256 MiB."""

PASS_ROWS = 4096
"""Rows and columns of the array, 64 MiB, of a pass over memory."""

QUANTIZED = "com.intel.analytics.bigdl.dllib.nn.quantized."
WEIGHTED = ("SpatialConvolution", "Linear")


def export(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of models.BuildJob
    """Make sure that the network is in the cache as plain arrays; BigDL calibrates nothing ahead."""
    from .models import BuildJob, fp32_model, load_parts  # noqa: PLC0415 - only here onnx is installed

    job = BuildJob(**arguments)
    source = fp32_model(job)
    name = f"{source.stem}-layers-r{LAYERS_REVISION}"
    layers = job.models.get(
        name, lambda target: _export_parts(load_parts(source, job.network, job.seed), target)
    )
    return job.report(layers, source)


def infer(**arguments: Any) -> Inference:  # noqa: ANN401 - those of InferenceJob
    """Load a model for timing and check that its layers are computed in its precision.

    Raises:
        ValueError: A layer is not.
    """
    job = InferenceJob(**arguments)
    java_facts = start_java(job.threads)
    from bigdl.dllib.nn.layer import Model  # type: ignore[import-not-found]  # noqa: PLC0415 - starts Java

    parts = [
        Part(model=folder / "model.bigdl", images=np.load(folder / "images.npy"))
        for folder in _part_folders(job.path)
    ]
    models = [Model.loadModel(str(part.model)).evaluate() for part in parts]
    precisions = _count_precisions(models[0])
    if set(precisions) != {job.precision}:
        raise ValueError(f"layers are computed in {precisions}")
    facts = job.facts(f"BigDL {VERSION}", _model_bytes(job.path))
    return Inference(
        parts=parts,
        runs=[model.forward for model in models],
        feed=repeat_images(parts[0].images, job.batch),
        facts={**facts, "layers_computed_in": precisions, **java_facts},
        peak=partial(measure_peak, job.precision),
    )


def measure_peak(precision: str, seconds: float) -> Peak:
    """Return what BigDL reaches at best, Java started: products of matrices by Linear, and a pass by ReLU.

    Inputs are the layers' own weights, so that nothing is passed between Python and Java.
    """
    from bigdl.dllib.nn import layer as nn  # type: ignore[import-not-found]  # noqa: PLC0415 - starts Java

    def make(size: int) -> Callable[[], object]:
        layer = nn.Linear(size, size).evaluate()
        values = _tensors(layer)[0]
        computed = layer.quantize() if precision == "int8" else layer
        return partial(computed.value.forward, values)

    values = _tensors(nn.Linear(PASS_ROWS, PASS_ROWS))[0]
    moved = 2 * ELEMENT_BYTES["fp32"] * PASS_ROWS**2
    bandwidth = best_rate(partial(nn.ReLU().evaluate().value.forward, values), moved, seconds / 2)
    return Peak(dtype=precision, flop_per_s=best_product(make, seconds), bytes_per_s=bandwidth)


def _export_parts(parts: list[Part], target: Path) -> None:
    for number, part in enumerate(parts):
        folder = target / f"part{number}"
        folder.mkdir(parents=True)
        layers, weights = _list_layers(part.model)
        (folder / "layers.json").write_text(json.dumps(layers), encoding="utf-8")
        np.savez(folder / "weights.npz", **weights)
        np.save(folder / "images.npy", part.images)


def _list_layers(model: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return a model's layers and the arrays that they name; ValueError if a kind is not supported."""
    import onnx  # noqa: PLC0415 - as above
    from onnx import helper, numpy_helper  # noqa: PLC0415

    graph = onnx.load(model).graph
    unknown = sorted({node.op_type for node in graph.node} - SUPPORTED)
    if unknown:
        raise ValueError(f"no form for BigDL of {', '.join(unknown)}")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    layers = [
        {
            "op": node.op_type,
            "name": node.output[0],
            "sources": [name for name in node.input if name not in arrays],
            "weights": [name for name in node.input if name in arrays],
            "attributes": {
                attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
            },
        }
        for node in graph.node
    ]
    return layers, arrays


def build(*, precision: str, source: str, threads: int) -> UntimedWorkload:
    """Make sure that BigDL's form of an exported network is in the cache, int8 by its own `quantize()`."""
    exported = Path(source)
    name = f"{exported.name}-bigdl{VERSION}-r{REVISION}-{precision}"
    make = partial(_make, exported, quantized=precision == "int8", threads=threads)
    folder = ModelCache(exported.parent).get(name, make)
    return UntimedWorkload(facts={"model": str(folder), "model_bytes": _model_bytes(folder)})


def _make(source: Path, target: Path, *, quantized: bool, threads: int) -> None:
    start_java(threads)
    target.mkdir()
    for part in _part_folders(source):
        model = build_network(json.loads((part / "layers.json").read_text("utf-8")), part / "weights.npz")
        if quantized:
            model = model.quantize()
        (target / part.name).mkdir()
        # A second path, for the weights alone, is what an int8 model cannot be saved with.
        model.saveModel(str(target / part.name / "model.bigdl"), over_write=True)
        shutil.copy(part / "images.npy", target / part.name)


def start_java(threads: int) -> dict[str, Any]:
    """Start Java with Spark and BigDL, once a process, and return the facts that the figures depend on.

    Raises:
        ValueError: There is no Java.
    """
    java = shutil.which("java")
    if java is None:
        raise ValueError("there is no java: sudo apt-get install -qy openjdk-17-jre-headless")
    options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    # It would write its log into the working folder.
    options += [f"-Dbigdl.mklNumThreads={threads}", "-Dbigdl.utils.LoggerFilter.logFile=/dev/null"]
    heap_gib = max(2, int(hardware.memory_bytes() / usage.GIB / 2))
    os.environ |= {
        "JDK_JAVA_OPTIONS": " ".join([os.environ.get("JDK_JAVA_OPTIONS", ""), *options]).strip(),
        "OMP_NUM_THREADS": str(threads),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DRIVER_MEMORY": f"{heap_gib}g",
    }
    if "AMD" in hardware.cpu_model():
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    from bigdl.dllib.nncontext import (  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy
        init_nncontext,
        init_spark_conf,
    )

    conf = init_spark_conf().setMaster(f"local[{threads}]").set("spark.ui.enabled", "false")
    init_nncontext(conf)
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    versions = [line for line in output.splitlines() if "version" in line]
    return {
        "java": versions[0] if versions else "unknown",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mkl_debug_cpu_type": os.environ.get("MKL_DEBUG_CPU_TYPE", ""),
        "mkl_threads": threads,
    }


def build_network(layers: Sequence[Mapping[str, Any]], weights: Path) -> Any:  # noqa: ANN401 - it ships no types
    from bigdl.dllib.nn import layer as nn  # noqa: PLC0415 - starts Java

    nodes = {"images": nn.Input()}
    last = "images"
    with np.load(weights) as arrays:
        for layer in layers:
            module = _make_layer(nn, layer, [arrays[name] for name in layer["weights"]])
            sources = [nodes[name] for name in layer["sources"]]
            last = layer["name"]
            nodes[last] = module(sources if len(sources) > 1 else sources[0])
    return nn.Model([nodes["images"]], [nodes[last]]).evaluate()


def _make_layer(nn: Any, layer: Mapping[str, Any], weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    attributes = layer["attributes"]
    makers: dict[str, Callable[[], Any]] = {
        "Conv": lambda: _make_convolution(nn, attributes, weights),
        "Gemm": lambda: _make_linear(nn, weights),
        "Relu": nn.ReLU,
        "MaxPool": lambda: _make_max_pool(nn, attributes),
        "Add": nn.CAddTable,
        "GlobalAveragePool": lambda: nn.SpatialAveragePooling(1, 1, global_pooling=True),
        "Flatten": lambda: nn.InferReshape([0, -1]),
    }
    return makers[layer["op"]]()


def _make_max_pool(nn: Any, attributes: Mapping[str, Any]) -> Any:  # noqa: ANN401
    kernel, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    pad = attributes.get("pads", [0] * 4)
    return nn.SpatialMaxPooling(kernel[1], kernel[0], stride[1], stride[0], pad_w=pad[1], pad_h=pad[0])


def _make_convolution(nn: Any, attributes: Mapping[str, Any], weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    weight, bias = weights
    outputs, inputs, height, width = weight.shape
    stride, pad = attributes.get("strides", [1, 1]), attributes.get("pads", [0] * 4)
    layer = nn.SpatialConvolution(
        inputs, outputs, width, height, stride[1], stride[0], pad_w=pad[1], pad_h=pad[0]
    )
    layer.set_weights([weight[None], bias])
    return layer


def _make_linear(nn: Any, weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    """Make a Linear, its weights passed to Java in pieces: VGG's first would overflow the bridge's count."""
    weight, bias = weights
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs)
    rows = max(1, PIECE_BYTES // (weight.itemsize * inputs))
    for start in range(0, outputs, rows):
        part = slice(start, start + rows)
        piece = nn.Linear(inputs, len(bias[part]))
        piece.set_weights([weight[part], bias[part]])
        for whole, values in zip(_tensors(layer), _tensors(piece), strict=True):
            whole.narrow(1, start + 1, len(bias[part])).copy(values)  # Java counts from 1 here
    return layer


def _tensors(layer: Any) -> list[Any]:  # noqa: ANN401
    return list(layer.value.parameters()._1())  # noqa: SLF001 - the first of a pair, in Scala


def _count_precisions(model: Any) -> dict[str, int]:  # noqa: ANN401
    """Count the layers with weights by precision, which their classes in Java show."""
    names = [layer.value.getClass().getName() for layer in model.flattened_layers()]
    precisions = [
        "int8" if name.startswith(QUANTIZED) else "fp32"
        for name in names
        if name.rpartition(".")[2] in WEIGHTED
    ]
    return dict(Counter(precisions))


def _part_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("part*"), key=lambda path: int(path.name[4:]))


def _model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.bigdl"))
