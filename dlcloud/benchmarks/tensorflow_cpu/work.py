"""Count a training step's operations and bytes in its graph, and measure TensorFlow's peak; runs in workers.

Operations are counted by the shapes of the graph's tensors, forward and backward. TensorFlow's own profiler
counts the same, but refuses gradients of images whose channels come first.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..harness.roofline import ELEMENT_BYTES, Peak, Work, array_values, best_product, best_rate
from .loading import tf

IDLE = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", "Shape"),
    *("StridedSlice", "Pack", "Squeeze", "ExpandDims", "StopGradient", "VarIsInitializedOp"),
}
"""Operators that compute nothing and move nothing; what a variable holds is counted where it is used."""

WIDTH = 32
"""Width of the images of which a convolution by 1x1 is a product of matrices."""

DTYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}

Graph = Any  # TensorFlow ships no types
Node = Any
Tensor = Any


def count_work(graph: Graph, items: int) -> Work:
    """Return the work of an item of a step's graph, whose shapes are all known.

    Bytes: each tensor that an operator makes written once and read once, and each variable read once.
    """
    flop, moved, uncounted = 0, 0, set()
    for node in graph.get_operations():
        if node.type == "ReadVariableOp":
            moved += _bytes(node.outputs[0])
        if node.type in IDLE:
            continue
        moved += 2 * sum(map(_bytes, node.outputs))
        if node.type in COUNTERS:
            flop += COUNTERS[node.type](node)
        else:
            uncounted.add(node.type)
    return Work(flop=flop / items, bytes=moved / items, uncounted=tuple(sorted(uncounted)))


def _conv_flop(values: Tensor, weights: Tensor) -> int:
    # Weights are (height, width, inputs, outputs): each output value takes one product a weight of its own.
    return 2 * _count(values) * _count(weights) // int(weights.shape[-1])


def _depthwise_flop(values: Tensor, weights: Tensor) -> int:
    return 2 * _count(values) * int(weights.shape[0]) * int(weights.shape[1])


def _matmul_flop(node: Node) -> int:
    is_transposed = node.get_attr("transpose_a")
    return 2 * _count(node.outputs[0]) * int(node.inputs[0].shape[0 if is_transposed else 1])


COUNTERS: Mapping[str, Callable[[Node], int]] = {
    "Conv2D": lambda node: _conv_flop(node.outputs[0], node.inputs[1]),
    "Conv2DBackpropInput": lambda node: _conv_flop(node.inputs[2], node.inputs[1]),
    "Conv2DBackpropFilter": lambda node: _conv_flop(node.inputs[2], node.outputs[0]),
    "DepthwiseConv2dNative": lambda node: _depthwise_flop(node.outputs[0], node.inputs[1]),
    "DepthwiseConv2dNativeBackpropInput": lambda node: _depthwise_flop(node.inputs[2], node.inputs[1]),
    "DepthwiseConv2dNativeBackpropFilter": lambda node: _depthwise_flop(node.inputs[2], node.outputs[0]),
    "MatMul": _matmul_flop,
}
"""Operations of the operators that multiply and add; as in the other programs, all others count as none."""


def _count(tensor: Tensor) -> int:
    return int(tensor.shape.num_elements())


def _bytes(tensor: Tensor) -> int:
    values = tensor.shape.num_elements()
    return 0 if values is None else int(values) * int(tensor.dtype.size)


def measure_peak(dtype: str, seconds: float) -> Peak:
    """Return the peak in a data type (a key of DTYPES), in about twice `seconds`, as the process is set up.

    The better of a product of matrices and of a convolution by 1x1, which other kernels compute.
    """
    rates = [
        best_product(partial(form, dtype=DTYPES[dtype]), seconds / 2) for form in (_product, _convolution)
    ]
    return Peak(dtype=dtype, flop_per_s=max(rates), bytes_per_s=_measure_bandwidth(seconds / 2))


def _product(size: int, dtype: Any) -> Callable[[], object]:  # noqa: ANN401 - TensorFlow's own
    left, right = (tf.cast(tf.random.uniform((size, size), -1, 1), dtype) for _ in range(2))
    return _run(lambda: tf.matmul(left, right))


def _convolution(size: int, dtype: Any) -> Callable[[], object]:  # noqa: ANN401 - TensorFlow's own
    images = tf.cast(tf.random.uniform((1, size // WIDTH, WIDTH, size), -1, 1), dtype)
    weights = tf.cast(tf.random.uniform((1, 1, size, size), -1, 1), dtype)
    return _run(lambda: tf.nn.conv2d(images, weights, 1, "VALID"))


def _run(compute: Callable[[], Any]) -> Callable[[], object]:
    # The smallest part of the result comes back, so that a GPU has ended.
    step = tf.function(lambda: tf.reshape(compute(), [-1])[0])
    return lambda: float(step())


def _measure_bandwidth(seconds: float) -> float:
    """Return the bytes a second of `a -= 3 b`, in place: two arrays read, one written."""
    values = tf.Variable(tf.ones([array_values()]))
    steps = tf.ones([array_values()])

    @tf.function  # type: ignore[untyped-decorator]
    def run() -> Graph:
        tf.raw_ops.ResourceApplyGradientDescent(var=values.handle, alpha=3e-9, delta=steps)
        return values[0]

    return best_rate(lambda: float(run()), 3 * ELEMENT_BYTES["fp32"] * array_values(), seconds)
