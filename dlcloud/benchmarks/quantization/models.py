"""Build the fp32 models that the engines share, count their work, choose which images serve what purpose.

Runs inside workers; imports no engine, so that what a setting's process weighs is its own engine's weight.
The work is two operations for each multiply-add of convolutions and matrix multiplications, as PyTorch's
FlopCounterMode counts them; every other operator counts as none and is named. Shapes come from ONNX's own
inference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from ..harness.digits import load_folds
from ..harness.preparation import ModelCache
from ..harness.workload import UntimedWorkload
from . import digits
from .inference import DIGITS, InferenceJob, Part, draw_images, repeat_images
from .onnx_graphs import NETWORKS, OPSET, REVISION
from .onnx_graphs import write as write_network
from .user_model import UserModel

# Different images for calibration, agreement and timing, all from one seed of the user's.
CALIBRATION, AGREEMENT, TIMING = 1, 2, 3

AGREEMENT_IMAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """What a worker builds."""

    network: str  # name of the network, or path of the description of the user's model
    seed: int  # of weights and images
    cache: str  # folder of the built models
    calibration_images: int = 0  # how many images int8 scales are taken from

    @property
    def models(self) -> ModelCache:
        return ModelCache(Path(self.cache))

    def stem(self, source: Path) -> str:
        """Return how the names of files made of a model begin."""
        user = UserModel.read(self.network)
        return source.stem if user is None else user.name

    def report(self, model: Path, graph: Path | None = None) -> UntimedWorkload:
        """Return the facts of a cached model.

        `labels` are those of the images that judge it, if any; `work` is that of an input, of the
        model or of the ONNX graph that it was made of.
        """
        labels = None
        if (user := UserModel.read(self.network)) is not None:
            labels = user.labels()
        elif self.network == DIGITS:
            labels = np.concatenate([fold.held_out_labels for fold in load_folds(self.seed)]).tolist()
        facts = {"model": str(model), "model_bytes": model_bytes(model), "labels": labels}
        facts["work"] = work_of(graph or model)
        return UntimedWorkload(facts=facts)


def build_fp32(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    """Make sure that the fp32 model is in the cache; its path is the fact `model`, its size `model_bytes`."""
    job = BuildJob(**arguments)
    return job.report(fp32_model(job))


def fp32_model(job: BuildJob) -> Path:
    """Return the path of the fp32 model, built if it is not cached, or of the user's own."""
    if (user := UserModel.read(job.network)) is not None:
        return Path(user.file)
    name = f"{job.network}-seed{job.seed}-opset{OPSET}"
    if job.network == DIGITS:
        return job.models.get(f"{name}-r{digits.REVISION}", lambda target: digits.build(job.seed, target))
    network = NETWORKS[job.network]
    return job.models.get(f"{name}-r{REVISION}.onnx", lambda target: write_network(network, job.seed, target))


def build_quantized(
    job: BuildJob, source: Path, kind: str, quantize: Callable[[Path, Path, np.ndarray], None]
) -> UntimedWorkload:
    """Make sure that the quantized form of a model is in the cache, or those of the digits' folds.

    `source` is the fp32 model in the engine's format; `kind`, the engine's way and version, ends the file's
    name; `quantize` takes a file, the path of its quantized form, and calibration images.
    """

    def write(target: Path) -> None:
        count = job.calibration_images
        if job.network != DIGITS:
            quantize(source, target, _draw(job.network, count, job.seed, CALIBRATION))
            return
        target.mkdir()
        for file, fold in zip(fold_files(source), load_folds(job.seed), strict=True):
            quantize(file, target / file.name, fold.training[:count])

    return job.report(job.models.get(f"{job.stem(source)}-int8-minmax{job.calibration_images}-{kind}", write))


def fold_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("fold*"))


def model_bytes(model: Path) -> int:
    files = [file for file in model.rglob("*") if file.is_file()] if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def load_parts(model: Path, network: str, seed: int) -> list[Part]:
    """Return the model with its images for agreement, or each fold with the images held out from it."""
    if (user := UserModel.read(network)) is not None:
        return [Part(model=model, images=user.judging_inputs(1000 * seed + AGREEMENT))]
    if network != DIGITS:
        return [Part(model=model, images=_draw(network, AGREEMENT_IMAGES, seed, AGREEMENT))]
    files = fold_files(model)
    return [
        Part(model=file, images=fold.held_out) for file, fold in zip(files, load_folds(seed), strict=True)
    ]


def draw_feed(parts: Sequence[Part], job: InferenceJob) -> np.ndarray:
    if job.network in NETWORKS:
        return _draw(job.network, job.batch, job.seed, TIMING)
    return repeat_images(parts[0].images, job.batch)


def _draw(network: str, count: int, seed: int, purpose: int) -> np.ndarray:
    """Draw images of a network's size, (count, 3, size, size) float32, others for each purpose.

    For the user's model, return its calibration data.
    """
    seed = 1000 * seed + purpose
    if (user := UserModel.read(network)) is not None:
        return user.calibration_inputs(count, seed)
    return draw_images(count, NETWORKS[network].size, seed)


SMALL_BYTES = 4096
"""A constant up to this size may be a shape, which the inference needs; a larger one is a weight."""
FLOAT_BYTES = 4
LONGEST_REASON = 200
NO_WORK = {"Constant", "Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Shape"}
"""They move nothing that is computed with."""

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The work of one input.

    Attributes:
        flop: Floating-point operations.
        weight_bytes: Weights, in float32.
        bytes: Weights, and each tensor written once and read once, in float32: the least that moves without
            a cache.
        uncounted: Operators that count as no operation.
        unknown: Operators of which a shape is not known, so that `flop` is too small.
    """

    flop: int
    weight_bytes: int
    bytes: int
    uncounted: tuple[str, ...]
    unknown: tuple[str, ...]


def count_operations(model: onnx.ModelProto) -> Operations:
    """Return the operations of a model for a batch of one."""
    shapes = _shapes(model)
    flop, uncounted, unknown = 0, set(), set()
    for node in model.graph.node:
        if node.op_type not in _COUNTERS:
            uncounted |= {node.op_type} - NO_WORK
            continue
        try:
            flop += 2 * _COUNTERS[node.op_type](node, shapes)
        except KeyError:
            unknown.add(node.op_type)
    weights = {weight.name for weight in model.graph.initializer}
    tensors = [name for node in model.graph.node for name in node.output if name in shapes]
    read_once = sum(prod(shapes[name]) for name in weights)
    return Operations(
        flop=flop,
        weight_bytes=FLOAT_BYTES * read_once,
        bytes=FLOAT_BYTES * (read_once + 2 * sum(prod(shapes[name]) for name in tensors)),
        uncounted=tuple(sorted(uncounted)),
        unknown=tuple(sorted(unknown)),
    )


def work_of(file: Path) -> dict[str, Any]:
    """Return the operations and bytes of an input of an ONNX file as facts; none for any other file.

    Of a folder of equal networks, one for each fold of the data, the first is counted. A quantized graph has
    further tensors between its operators, which engines fuse: it gets no bytes.
    """
    files = [one for one in sorted(file.glob("*.onnx")) if one.is_file()] if file.is_dir() else [file]
    if not files or files[0].suffix != ".onnx":
        return {}
    model = onnx.load(str(files[0]), load_external_data=False)
    try:
        counted = count_operations(model)
    except (shape_inference.InferenceError, ValueError, TypeError) as error:
        return {"operations_unknown": [str(error)[:LONGEST_REASON]]}
    if counted.unknown:
        return {"operations_unknown": list(counted.unknown)}
    is_quantized = any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    moved = {"bytes_per_input": counted.bytes, "weight_bytes": counted.weight_bytes}
    moved = {} if is_quantized else moved
    return {"flop_per_input": counted.flop, **moved, "uncounted_operators": list(counted.uncounted)}


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return all known shapes, with the open batch as 1; weights are left out of what is copied."""
    graph = onnx.GraphProto(name="shapes", node=model.graph.node, output=model.graph.output)
    shapes = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    for weight in model.graph.initializer:
        if weight.ByteSize() <= SMALL_BYTES:
            graph.initializer.append(weight)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    for value in model.graph.input:
        if value.name not in shapes:
            sizes = [one.dim_value or 1 for one in value.type.tensor_type.shape.dim]
            kind = value.type.tensor_type.elem_type
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, kind, sizes))
    del graph.output[:]
    graph.output.extend(onnx.helper.make_empty_tensor_value_info(value.name) for value in model.graph.output)
    bare = onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=model.opset_import)
    inferred = shape_inference.infer_shapes(bare, data_prop=True).graph
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(one.HasField("dim_value") for one in dims):
            shapes[value.name] = tuple(one.dim_value for one in dims)
    return shapes


def _conv(node: onnx.NodeProto, shapes: Shapes) -> int:
    # A weight is (outputs, inputs of a group, height, width): each output value takes one product a weight.
    return prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])


def _gemm(node: onnx.NodeProto, shapes: Shapes) -> int:
    is_transposed = any(one.name == "transA" and one.i for one in node.attribute)
    left = shapes[node.input[0]]
    return prod(shapes[node.output[0]]) * left[0 if is_transposed else 1]


def _matmul(node: onnx.NodeProto, shapes: Shapes) -> int:
    return prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


_COUNTERS = {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul}
