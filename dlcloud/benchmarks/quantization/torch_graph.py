"""Run an ONNX graph as a PyTorch module, so that PyTorch gets the same networks as the other engines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

Operator = Callable[..., Any]


class UnreadableError(ValueError):
    """A graph holds what this module cannot turn into PyTorch; the message says what."""


def read(path: Path) -> torch.nn.Module:
    """Return the network of an ONNX file, ready for inference.

    Raises:
        UnreadableError: It has an operator or an attribute that is not known here.
    """
    return Graph(onnx.load(path).graph).eval()


class Graph(torch.nn.Module):
    """An ONNX graph of one input, its weights held as parameters.

    Raises:
        UnreadableError: As `read`.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise UnreadableError(f"operators that are not read into PyTorch: {', '.join(unknown)}")
        self._constants: dict[str, np.ndarray] = {}
        for tensor in graph.initializer:
            self._keep(tensor.name, numpy_helper.to_array(tensor))
        inputs = [each.name for each in graph.input if each.name not in self._known]
        if len(inputs) != 1:
            raise UnreadableError(f"{len(inputs)} inputs; only graphs of one are read into PyTorch")
        self._input = inputs[0]
        self._outputs = [each.name for each in graph.output]
        self._steps = [
            (node.op_type, list(node.input), node.output[0], _attributes(node)) for node in graph.node
        ]

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute the outputs: the one there is, or all of them."""
        values: dict[str, Any] = {self._input: images}
        for name, safe in self._known.items():
            values[name] = self._constants[name] if safe is None else getattr(self, safe)
        for operator, inputs, output, attributes in self._steps:
            values[output] = OPERATORS[operator](*(values[name] for name in inputs if name), **attributes)
        outputs = tuple(values[name] for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def _known(self) -> dict[str, str | None]:
        """Return the names of weights, with the attribute that holds each; None for shapes and the like."""
        return self.__dict__.setdefault("_names", {})  # type: ignore[no-any-return]

    def _keep(self, name: str, values: np.ndarray) -> None:
        if values.dtype.kind != "f":
            self._constants[name] = values
            self._known[name] = None
            return
        self._known[name] = safe = f"weight{len(self._known)}"
        parameter = torch.nn.Parameter(torch.from_numpy(values.copy()), requires_grad=False)
        self.register_parameter(safe, parameter)


ONLY: Mapping[str, object] = {
    "auto_pad": "NOTSET",
    "transA": 0,
    "storage_order": 0,
    "training_mode": 0,
    "allowzero": 0,
    "beta": 1.0,
}
"""Attributes of which one value is known, and goes without saying; others must not pass unnoticed."""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes.

    Raises:
        UnreadableError: One has a value that is not known here.
    """
    values = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    values = {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
    only = {**ONLY, **({"alpha": 1.0} if node.op_type == "Gemm" else {})}
    if node.op_type == "HardSigmoid":
        only.pop("beta")
    for name, value in values.items():
        if value != only.get(name, value):
            raise UnreadableError(f"{node.op_type} with {name} = {value} is not read into PyTorch")
    return {name: value for name, value in values.items() if name not in only}


def _even(pads: Sequence[int]) -> list[int]:
    """Return the padding of each axis, which must be the same at both ends.

    Raises:
        UnreadableError: It is not.
    """
    half = len(pads) // 2
    if list(pads[:half]) != list(pads[half:]):
        raise UnreadableError(f"padding of {list(pads)}, uneven")
    return list(pads[:half])


def _conv(
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    **_: object,
) -> torch.Tensor:
    padding = _even(pads)
    return functional.conv2d(source, weight, bias, list(strides), padding, list(dilations), group)


def _gemm(
    source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **attributes: int
) -> torch.Tensor:
    return functional.linear(source, weight if attributes.get("transB") else weight.t(), bias)


def _max_pool(
    source: torch.Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    **_: object,
) -> torch.Tensor:
    return functional.max_pool2d(
        source, list(kernel_shape), list(strides), _even(pads), ceil_mode=bool(ceil_mode)
    )


def _average_pool(
    source: torch.Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **_: object,
) -> torch.Tensor:
    return functional.avg_pool2d(
        source, list(kernel_shape), list(strides), _even(pads), bool(ceil_mode), bool(count_include_pad)
    )


def _normalised(
    source: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    **_: object,
) -> torch.Tensor:
    return functional.batch_norm(source, mean, variance, scale, bias, training=False, eps=epsilon)


def _reshape(source: torch.Tensor, shape: np.ndarray, **_: object) -> torch.Tensor:
    """Reshape; a 0 keeps the size, and a leading 1 that stood for the batch becomes it."""
    sizes = [source.shape[place] if size == 0 else int(size) for place, size in enumerate(shape)]
    return source.reshape(sizes)


def _clip(
    source: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None
) -> torch.Tensor:
    bounds = [None if bound is None else float(bound) for bound in (low, high)]
    return torch.clamp(source, *bounds)


OPERATORS: Mapping[str, Operator] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _normalised,
    "Clip": _clip,
    "Concat": lambda *sources, axis: torch.cat(sources, dim=axis),
    "Conv": _conv,
    "Div": torch.div,
    "Dropout": lambda source, *_, **__: source,
    "Flatten": lambda source, axis=1: source.flatten(axis),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda source: functional.adaptive_avg_pool2d(source, 1),
    "HardSigmoid": lambda source, alpha=0.2, beta=0.5: torch.clamp(alpha * source + beta, 0, 1),
    "HardSwish": functional.hardswish,
    "Identity": lambda source: source,
    "LeakyRelu": lambda source, alpha=0.01: functional.leaky_relu(source, alpha),
    "LpNormalization": lambda source, axis=-1, p=2: functional.normalize(source, p=p, dim=axis),
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Relu": functional.relu,
    "Reshape": _reshape,
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda source, axis=-1: torch.softmax(source, dim=axis),
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Transpose": lambda source, perm: source.permute(perm),
}
"""What is known, by ONNX's names; the shapes are those of images, (batch, channels, height, width)."""
