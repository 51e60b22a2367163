"""Build the fp32 models that the engines share, count their work, choose which images serve what purpose.

Runs inside workers; imports no engine, so that what a setting's process weighs is its own engine's weight.
The work is two operations for each multiply-add of convolutions and matrix multiplications, as PyTorch's
FlopCounterMode counts them; every other operator counts as none and is named. Shapes come from ONNX's own
inference.

A user's own model file is treated at the end: `describe` runs once, in a worker, and writes a small file, the
description, with the model's input and the data that it is calibrated and judged by. The path of that file
stands in for the model wherever the benchmark's own networks have a name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from onnx import shape_inference

from ..harness.case import UntimedWorkload
from ..harness.digits import load_folds
from ..harness.preparation import ModelCache, size_of
from . import digits
from .inference import DIGITS, InferenceJob, Part, draw_images, draw_shaped_images, repeat_images
from .onnx_graphs import NETWORKS, OPSET, REVISION
from .onnx_graphs import write as write_network
from .settings import DESCRIPTION_SUFFIX, Format, detect_format, read_description

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
        facts = {"model": str(model), "model_bytes": size_of(model), "labels": labels}
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


SYNTHETIC_IMAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """A description."""

    name: str  # for cached files: the file's name with a digest of its content
    source: str  # the user's own path
    file: str  # the file that engines read: the source, or the program that a Keras file was exported to
    shape: tuple[int, ...]  # of one input, without the batch
    batch: int | None  # the only batch that the model takes; None if it takes any
    data: str | None  # the `.npz` for calibration and judging; None for synthetic images

    @classmethod
    def read(cls, network: str) -> Self | None:
        """Return the model of a description's path; None for the name of a network."""
        description = read_description(network)
        if description is None:
            return None
        return cls(**{**description, "shape": tuple(description["shape"])})

    def calibration_inputs(self, count: int, seed: int) -> np.ndarray:
        """Return inputs to take scales from: at most half of the user's, or synthetic images."""
        if self.data is None:
            return draw_shaped_images(self.shape, count, seed)
        inputs = self._inputs()
        return inputs[: max(1, min(count, len(inputs) // 2))]

    def judging_inputs(self, seed: int) -> np.ndarray:
        """Return inputs to judge by: the second half of the user's, or synthetic images."""
        if self.data is None:
            return draw_shaped_images(self.shape, SYNTHETIC_IMAGES, seed)
        inputs = self._inputs()
        return inputs[len(inputs) // 2 :]

    def labels(self) -> list[int] | None:
        """Return the labels of the inputs to judge by, if the user gave any."""
        if self.data is None:
            return None
        with np.load(self.data) as data:
            if "labels" not in data:
                return None
            labels: list[int] = data["labels"][len(data["labels"]) // 2 :].tolist()
            return labels

    def _inputs(self) -> np.ndarray:
        assert self.data is not None  # noqa: S101 - asked for by the callers above
        with np.load(self.data) as data:
            inputs: np.ndarray = data["inputs"]
        return inputs


def describe(*, file: str, data: str | None, shape: Sequence[int] | None, cache: str) -> UntimedWorkload:
    """Read the model's input, check the data against it, and write the description.

    Raises:
        ValueError: The model or the data cannot be used; the message says why.
    """
    path = Path(file)
    models = ModelCache(Path(cache))
    name = f"{path.stem}-{_digest_files(path)}"
    if detect_format(path) is Format.KERAS:
        path = models.get(f"{name}.pt2", lambda target: _export_keras(Path(file), target))
    batch, *own_shape = READERS[detect_format(path)](path)
    shape = _resolve_shape(own_shape, shape)
    if data is None:
        draw_shaped_images(shape, 1, 0)
        kept = None
    else:
        kept = str(_keep_data(_read_data(Path(data), shape), name, models))
    model = UserModel(name=name, source=file, file=str(path.resolve()), shape=shape, batch=batch, data=kept)
    text = json.dumps(asdict(model))
    description = models.get(
        f"{name}-{_digest(text.encode())}{DESCRIPTION_SUFFIX}",
        lambda target: target.write_text(text, encoding="utf-8"),
    )
    return UntimedWorkload(facts={"description": str(description), "name": Path(file).name, "batch": batch})


def _resolve_shape(own: Sequence[int | None], given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of one input: given or the model's own; ValueError if it is open or they differ."""
    sizes = list(own) if given is None else list(given)
    if None in sizes:
        raise ValueError(f"the model leaves its input's shape open, {list(own)}: give --input-shape")
    fits = len(sizes) == len(own) and all(
        size in (None, other) for size, other in zip(own, sizes, strict=False)
    )
    if own and not fits:
        raise ValueError(f"the model takes inputs of shape {list(own)}, not {sizes}")
    return tuple(int(size) for size in sizes if size is not None)


def _read_data(path: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Read inputs, and labels where there are any; ValueError if they do not suit the model."""
    arrays = _read_arrays(path)
    labels = arrays.pop("labels", None)
    if len(arrays) != 1:
        raise ValueError(
            f"{path} holds {sorted(arrays)} in addition to labels; one array of inputs is expected"
        )
    (inputs,) = arrays.values()
    if inputs.shape[1:] != shape:
        raise ValueError(f"{path} holds {list(inputs.shape[1:])} as inputs; the model takes {list(shape)}")
    if len(inputs) < 2:  # noqa: PLR2004 - one for the scales, one to judge by
        raise ValueError(
            f"{path} holds {len(inputs)} inputs; at least 2 are needed, to calibrate and to judge"
        )
    if labels is None:
        return {"inputs": inputs.astype(np.float32)}
    if labels.shape != (len(inputs),):
        raise ValueError(f"{path} holds {len(inputs)} inputs and labels of shape {list(labels.shape)}")
    return {"inputs": inputs.astype(np.float32), "labels": labels.astype(np.int64)}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an `.npz`, an `.npy`, or a folder of `.npy` files, one input each and perhaps `labels.npy`."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.glob("*.npy") if file.stem != "labels")
            arrays = {"inputs": np.stack([np.load(file) for file in files])} if files else {}
            labels = path / "labels.npy"
            return {**arrays, **({"labels": np.load(labels)} if labels.exists() else {})}
        loaded = np.load(path)
        return {"inputs": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as arrays of NumPy: {error}") from None


def _keep_data(arrays: Mapping[str, np.ndarray], name: str, models: ModelCache) -> Path:
    """Copy the data next to the models, so that a later change of the user's leaves the figures valid."""

    def write(target: Path) -> None:
        with target.open("wb") as stream:
            np.savez(stream, **arrays)

    digest = _digest(b"".join(array.tobytes() for array in arrays.values()))
    return models.get(f"{name}-data-{digest}.npz", write)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _digest_files(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]


def _read_onnx_shape(path: Path) -> list[int | None]:
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    _expect_one(len(inputs))
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        raise ValueError(f"its input is {onnx.TensorProto.DataType.Name(tensor.elem_type)}, not FLOAT")
    return [dim.dim_value or None for dim in tensor.shape.dim]


def _read_program_shape(path: Path) -> list[int | None]:
    import torch  # noqa: PLC0415 - one format's

    program = torch.export.load(path)
    names = program.graph_signature.user_inputs
    _expect_one(len(names))
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.name == names[0])
    if value.dtype != torch.float32:
        raise ValueError(f"its input is {value.dtype}, not torch.float32")
    return [size if isinstance(size, int) else None for size in value.shape]


def _read_saved_model_shape(path: Path) -> list[int | None]:
    import openvino  # type: ignore[import-not-found]  # noqa: PLC0415 - one format's

    inputs = openvino.Core().read_model(path).inputs
    _expect_one(len(inputs))
    if inputs[0].element_type != openvino.Type.f32:
        raise ValueError(f"its input is {inputs[0].element_type}, not f32")
    shape = inputs[0].partial_shape
    if shape.rank.is_dynamic:
        raise ValueError("the model leaves the rank of its input open")
    return [None if size.is_dynamic else size.get_length() for size in shape]


def _expect_one(inputs: int) -> None:
    if inputs != 1:
        raise ValueError(f"the model has {inputs} inputs; only models of one can be measured")


READERS: Mapping[Format, Callable[[Path], list[int | None]]] = {
    Format.ONNX: _read_onnx_shape,
    Format.PT2: _read_program_shape,
    Format.SAVED_MODEL: _read_saved_model_shape,
}


def _export_keras(source: Path, target: Path) -> None:
    from .torch_programs import export_keras  # noqa: PLC0415 - one format's

    export_keras(source, target)
