"""ONNX graphs whose run is one product of matrices, or one pass over memory: what engines reach at best."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..harness.roofline import Peak, array_values, best_product, best_rate
from .onnx_graph import OPSET

IR_VERSION = 10
"""Of ONNX 1.16, which all engines read."""

WIDTH = 32
"""Width of the images of which a convolution by 1x1 is a product of matrices."""

Load = Callable[[bytes], Callable[[Mapping[str, np.ndarray]], object]]
"""Makes a graph ready to run with its inputs by name."""

SCALE, ZERO = np.float32(0.05), np.uint8(128)


def product(size: int, *, is_quantized: bool, as_convolution: bool) -> tuple[bytes, np.ndarray]:
    """Return a graph of one product of square matrices, and its input, in float32.

    If it is quantized, input and output are uint8 and the weights int8. `as_convolution` states it as a
    convolution by 1x1.
    """
    shape = (1, size, WIDTH, size // WIDTH) if as_convolution else (size, size)
    generator = np.random.default_rng(0)
    values = generator.integers(0, 256, shape, dtype=np.uint8)
    weights = generator.integers(-127, 128, (size, size), dtype=np.int8)
    weights = weights.reshape(size, size, 1, 1) if as_convolution else weights
    kind = "Conv" if as_convolution else "MatMul"
    if not is_quantized:
        nodes = [helper.make_node(kind, ["in", "weights"], ["out"])]
        kept = [numpy_helper.from_array(weights.astype(np.float32) / 127, "weights")]
        return _graph(nodes, kept, shape, TensorProto.FLOAT), (values / np.float32(255)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["in", "scale", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["weights", "scale", "none"], ["b"]),
        helper.make_node(kind, ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "wide", "zero"], ["out"]),
    ]
    kept = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(SCALE, "scale"),
        numpy_helper.from_array(SCALE * np.float32(size), "wide"),
        numpy_helper.from_array(ZERO, "zero"),
        numpy_helper.from_array(np.int8(0), "none"),
    ]
    return _graph(nodes, kept, shape, TensorProto.UINT8), values


def addition() -> tuple[bytes, np.ndarray]:
    """Return a graph that reads two arrays and writes their sum, and the array that is both."""
    nodes = [helper.make_node("Add", ["in", "second"], ["out"])]
    values = np.ones(array_values(), dtype=np.float32)
    return _graph(nodes, [], values.shape, TensorProto.FLOAT, inputs=("in", "second")), values


def measure_peak(load: Load, dtype: str, seconds: float) -> Peak:
    """Return the peak of an engine that loads graphs, in about twice `seconds`.

    The better of a product of matrices and of the same as a convolution, which other kernels compute.
    """

    def make(size: int, *, as_convolution: bool) -> Callable[[], object]:
        graph, values = product(size, is_quantized=dtype == "int8", as_convolution=as_convolution)
        return partial(load(graph), {"in": values})

    rates = [best_product(partial(make, as_convolution=form), seconds / 2) for form in (False, True)]
    graph, values = addition()
    run = partial(load(graph), {"in": values, "second": values.copy()})
    bandwidth = best_rate(run, 3 * values.nbytes, seconds / 2)
    return Peak(dtype=dtype, flop_per_s=max(rates), bytes_per_s=bandwidth)


def _graph(
    nodes: list[onnx.NodeProto],
    kept: list[onnx.TensorProto],
    shape: tuple[int, ...],
    kind: int,
    inputs: tuple[str, ...] = ("in",),
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "peak",
        [helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [helper.make_tensor_value_info("out", kind, shape)],
        kept,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized
