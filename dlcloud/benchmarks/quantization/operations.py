"""Count the operations and bytes of an ONNX graph, for one input: what a machine's peak is divided by.

Two operations for each multiply-add of convolutions and matrix multiplications, as PyTorch's FlopCounterMode
counts them; every other operator counts as none and is named. Shapes come from ONNX's own inference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import shape_inference

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
