"""Quantize and run the networks with BigDL on Spark; runs inside workers that have an environment of its own.

BigDL's Java part computes; Python hands it a batch and takes the logits. fp32 is multiplied by the MKL that
it brings along, int8 by its own BigQuant (bigdl_rule.py says how).

That MKL is older than today's AMD processors and takes a slow path on them unless it is told what they can
do; the fact `mkl_debug_cpu_type` says so.
"""

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import hardware
from .cache import ModelCache

VERSION = "2.4.0"

REVISION = 1
"""Counts changes of how models are made; part of the name of a cached folder."""

# Spark 3.1 reaches into Java's own packages, which Java 17 has closed.
# Source: Apache Spark, JavaModuleOptions, of the releases that support Java 17.
OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip

PIECE_BYTES = 64 << 20
"""What is handed to Java at once; Py4J counts the bits of its text in 32 bits, and fails from 256 MiB."""

QUANTIZED = "com.intel.analytics.bigdl.dllib.nn.quantized."
WEIGHTED = ("SpatialConvolution", "Linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a builder reports: nothing to time, only facts."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing: the work was done when the model was made."""

    def outputs(self) -> list[list[float]]:
        """Return nothing."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Models ready to run, the first of which is timed, with the images that each is judged by."""

    models: Sequence[Any]
    images: Sequence[np.ndarray]
    feed: np.ndarray
    facts: Mapping[str, Any]

    @property
    def items_per_step(self) -> int:
        """Return the images a step."""
        return len(self.feed)

    def step(self) -> None:
        """Run one batch."""
        self.models[0].forward(self.feed)

    def outputs(self) -> list[list[float]]:
        """Return the logits of every part's images."""
        rows: list[list[float]] = []
        for model, images in zip(self.models, self.images, strict=True):
            batches = -(-len(images) // len(self.feed))
            filled = np.resize(images, (batches * len(self.feed), *images.shape[1:]))
            logits = np.concatenate([model.forward(part) for part in np.split(filled, batches)])
            rows += logits[: len(images)].reshape(len(images), -1).astype(float).tolist()
        return rows


def build_fp32(*, source: str, threads: int) -> Made:
    """Make sure that BigDL's form of an exported network is in the cache."""
    return _built(source, "fp32", threads)


def build_int8(*, source: str, threads: int) -> Made:
    """Make sure of what BigDL's own `quantize()` makes of it."""
    return _built(source, "int8", threads)


def infer_fp32(*, model: str, network: str, batch: int, threads: int, seed: int) -> Forward:
    """Load the fp32 model for timing."""
    return _infer(model, network, batch, threads, seed, quantized=False)


def infer_int8(*, model: str, network: str, batch: int, threads: int, seed: int) -> Forward:
    """Load the int8 model for timing."""
    return _infer(model, network, batch, threads, seed, quantized=True)


def _built(source: str, precision: str, threads: int) -> Made:
    exported = Path(source)
    name = f"{exported.name}-bigdl{VERSION}-r{REVISION}-{precision}"
    make = partial(_make, exported, quantized=precision == "int8", threads=threads)
    folder = ModelCache(exported.parent).get(name, make)
    return Made(facts={"model": str(folder), "model_bytes": _model_bytes(folder)})


def _make(source: Path, target: Path, *, quantized: bool, threads: int) -> None:
    start_java(threads)
    target.mkdir()
    for part in _parts(source):
        model = network_of(json.loads((part / "layers.json").read_text("utf-8")), part / "weights.npz")
        if quantized:
            model = model.quantize()
        (target / part.name).mkdir()
        # A second path, for the weights alone, is what an int8 model cannot be saved with.
        model.saveModel(str(target / part.name / "model.bigdl"), over_write=True)
        shutil.copy(part / "images.npy", target / part.name)


def _infer(model: str, network: str, batch: int, threads: int, seed: int, *, quantized: bool) -> Forward:
    """Load a model and make sure that its layers are computed in what they are timed as.

    Raises:
        ValueError: A layer is not.
    """
    del seed
    facts = start_java(threads)
    from bigdl.dllib.nn.layer import Model  # type: ignore[import-not-found]  # noqa: PLC0415 - starts Java

    parts = _parts(Path(model))
    models = [Model.loadModel(str(part / "model.bigdl")).evaluate() for part in parts]
    computed_in = _computed_in(models[0])
    if set(computed_in) != {"int8" if quantized else "fp32"}:
        raise ValueError(f"layers are computed in {computed_in}")
    images = [np.load(part / "images.npy") for part in parts]
    facts = {
        "model_bytes": _model_bytes(Path(model)),
        "weights": "trained" if network == "digits" else "random",
        "engine": f"BigDL {VERSION}",
        "threads": threads,
        "layers_computed_in": computed_in,
        **facts,
    }
    feed = np.resize(images[0], (batch, *images[0].shape[1:]))
    return Forward(models=models, images=images, feed=feed, facts=facts)


def start_java(threads: int) -> dict[str, Any]:
    """Start Java with Spark and BigDL in it, once a process, and return what the figures depend on.

    Raises:
        ValueError: There is no Java.
    """
    java = shutil.which("java")
    if java is None:
        raise ValueError("there is no java: sudo apt-get install -qy openjdk-17-jre-headless")
    options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    # It would write its log into the working folder.
    options += [f"-Dbigdl.mklNumThreads={threads}", "-Dbigdl.utils.LoggerFilter.logFile=/dev/null"]
    heap_gib = max(2, int(hardware.memory_bytes() / hardware.GIB / 2))
    os.environ |= {
        "JDK_JAVA_OPTIONS": " ".join([os.environ.get("JDK_JAVA_OPTIONS", ""), *options]).strip(),
        "OMP_NUM_THREADS": str(threads),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DRIVER_MEMORY": f"{heap_gib}g",
    }
    amd = "AMD" in hardware.cpu_model()
    if amd:
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    from bigdl.dllib.nncontext import (  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy
        init_nncontext,
        init_spark_conf,
    )

    conf = init_spark_conf().setMaster(f"local[{threads}]").set("spark.ui.enabled", "false")
    init_nncontext(conf)
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    versions = [line for line in told.splitlines() if "version" in line]
    return {
        "java": versions[0] if versions else "unknown",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mkl_debug_cpu_type": os.environ.get("MKL_DEBUG_CPU_TYPE", ""),
        "mkl_threads": threads,
    }


def network_of(layers: Sequence[Mapping[str, Any]], weights: Path) -> Any:  # noqa: ANN401 - it ships no types
    """Build a BigDL graph from exported layers."""
    from bigdl.dllib.nn import layer as nn  # type: ignore[import-not-found]  # noqa: PLC0415 - starts Java

    nodes = {"images": nn.Input()}
    last = "images"
    with np.load(weights) as arrays:
        for each in layers:
            made = _layer(nn, each, [arrays[name] for name in each["weights"]])
            sources = [nodes[name] for name in each["sources"]]
            nodes[each["name"]] = made(sources if len(sources) > 1 else sources[0])
            last = each["name"]
    return nn.Model([nodes["images"]], [nodes[last]]).evaluate()


def _layer(nn: Any, described: Mapping[str, Any], weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    attributes = described["attributes"]
    makers: dict[str, Callable[[], Any]] = {
        "Conv": lambda: _convolution(nn, attributes, weights),
        "Gemm": lambda: _linear(nn, weights),
        "Relu": nn.ReLU,
        "MaxPool": lambda: _max_pool(nn, attributes),
        "Add": nn.CAddTable,
        "GlobalAveragePool": lambda: nn.SpatialAveragePooling(1, 1, global_pooling=True),
        "Flatten": lambda: nn.InferReshape([0, -1]),
    }
    return makers[described["op"]]()


def _max_pool(nn: Any, attributes: Mapping[str, Any]) -> Any:  # noqa: ANN401
    kernel, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    pad = attributes.get("pads", [0] * 4)
    return nn.SpatialMaxPooling(kernel[1], kernel[0], stride[1], stride[0], pad_w=pad[1], pad_h=pad[0])


def _convolution(nn: Any, attributes: Mapping[str, Any], weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    weight, bias = weights
    outputs, inputs, height, width = weight.shape
    stride, pad = attributes.get("strides", [1, 1]), attributes.get("pads", [0] * 4)
    made = nn.SpatialConvolution(
        inputs, outputs, width, height, stride[1], stride[0], pad_w=pad[1], pad_h=pad[0]
    )
    made.set_weights([weight[None], bias])
    return made


def _linear(nn: Any, weights: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    """Make a Linear, its weights handed to Java in pieces: VGG's first would overflow the bridge's count."""
    weight, bias = weights
    outputs, inputs = weight.shape
    made = nn.Linear(inputs, outputs)
    rows = max(1, PIECE_BYTES // (weight.itemsize * inputs))
    for start in range(0, outputs, rows):
        part = slice(start, start + rows)
        piece = nn.Linear(inputs, len(bias[part]))
        piece.set_weights([weight[part], bias[part]])
        for whole, values in zip(_tensors(made), _tensors(piece), strict=True):
            whole.narrow(1, start + 1, len(bias[part])).copy(values)  # Java counts from 1 here
    return made


def _tensors(layer: Any) -> list[Any]:  # noqa: ANN401
    """Return a layer's weight and bias as they lie in Java."""
    return list(layer.value.parameters()._1())  # noqa: SLF001 - the first of a pair, in Scala


def _computed_in(model: Any) -> dict[str, int]:  # noqa: ANN401
    """Count the layers with weights by what computes them, by their classes in Java."""
    names = [layer.value.getClass().getName() for layer in model.flattened_layers()]
    kinds = [
        "int8" if name.startswith(QUANTIZED) else "fp32"
        for name in names
        if name.rpartition(".")[2] in WEIGHTED
    ]
    return dict(Counter(kinds))


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part*"), key=lambda path: int(path.name[4:]))


def _model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.bigdl"))
