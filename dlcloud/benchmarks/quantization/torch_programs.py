"""Make PyTorch programs of ONNX and Keras files, so that PyTorch gets the same networks as other engines.

onnx2torch converts more operators, but needs torchvision, whose wheels are each bound to one build of
PyTorch.
"""

import os
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
    """A graph has a part that cannot be converted to PyTorch; the message names it."""


def export_onnx(source: Path, target: Path, shape: Sequence[int]) -> None:
    """Export the network of an ONNX file, of inputs of a shape, into the file `target`.

    Raises:
        UnreadableError: The graph has an unsupported operator or attribute.
    """
    export(Graph(onnx.load(source).graph).eval(), target, shape)


def export_keras(source: Path, target: Path) -> None:
    """Export a Keras file into the file `target`.

    Raises:
        ValueError: The model has several inputs, or leaves their shape open.
    """
    os.environ["KERAS_BACKEND"] = "torch"
    import keras  # noqa: PLC0415 - one format's

    model = keras.saving.load_model(source, compile=False).eval()
    if len(model.inputs) != 1:
        raise ValueError(f"the model has {len(model.inputs)} inputs; only models of one can be measured")
    shape = model.inputs[0].shape[1:]
    if None in shape:
        raise ValueError(f"the model leaves its input's shape open, {list(shape)}")
    with torch.no_grad():
        export(KerasModel(model).eval(), target, shape)


def export(module: Any, target: Path, shape: Sequence[int]) -> None:  # noqa: ANN401 - PyTorch's own
    """Export a module, its batch left open, into the file `target`."""
    # An export from a batch of one would take the one for a constant.
    example = torch.zeros(2, *shape)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, target)


class KerasModel(torch.nn.Module):
    """A Keras model whose only argument has a name, as export requires."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)


class Graph(torch.nn.Module):
    """An ONNX graph of one input, its weights held as parameters.

    Raises:
        UnreadableError: It has an unsupported operator or attribute.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise UnreadableError(f"operators that are not read into PyTorch: {', '.join(unknown)}")
        self._constants: dict[str, np.ndarray] = {}
        # By name of a weight, the parameter that holds it; None for shapes and the like, which are constants.
        self._attributes: dict[str, str | None] = {}
        for tensor in graph.initializer:
            self._keep(tensor.name, numpy_helper.to_array(tensor))
        inputs = [value.name for value in graph.input if value.name not in self._attributes]
        if len(inputs) != 1:
            raise UnreadableError(f"{len(inputs)} inputs; only graphs of one are read into PyTorch")
        self._input = inputs[0]
        self._outputs = [value.name for value in graph.output]
        self._steps = [
            (node.op_type, list(node.input), node.output[0], _read_attributes(node)) for node in graph.node
        ]

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute the outputs: the one there is, or all of them."""
        values: dict[str, Any] = {self._input: images}
        for name, attribute in self._attributes.items():
            values[name] = self._constants[name] if attribute is None else getattr(self, attribute)
        for operator, inputs, output, attributes in self._steps:
            values[output] = OPERATORS[operator](*(values[name] for name in inputs if name), **attributes)
        outputs = tuple(values[name] for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _keep(self, name: str, values: np.ndarray) -> None:
        if values.dtype.kind != "f":
            self._constants[name] = values
            self._attributes[name] = None
            return
        self._attributes[name] = attribute = f"weight{len(self._attributes)}"
        parameter = torch.nn.Parameter(torch.from_numpy(values.copy()), requires_grad=False)
        self.register_parameter(attribute, parameter)


REQUIRED: Mapping[str, object] = {
    "auto_pad": "NOTSET",
    "transA": 0,
    "storage_order": 0,
    "training_mode": 0,
    "allowzero": 0,
    "beta": 1.0,
}
"""Attributes of which only this value is supported."""


def _read_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes; UnreadableError if one has an unsupported value."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    values = {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
    required = {**REQUIRED, **({"alpha": 1.0} if node.op_type == "Gemm" else {})}
    if node.op_type == "HardSigmoid":
        required.pop("beta")
    for name, value in values.items():
        if value != required.get(name, value):
            raise UnreadableError(f"{node.op_type} with {name} = {value} is not read into PyTorch")
    return {name: value for name, value in values.items() if name not in required}


def _symmetric(pads: Sequence[int]) -> list[int]:
    """Return the padding of each axis; UnreadableError if it differs between its ends."""
    half = len(pads) // 2
    if list(pads[:half]) != list(pads[half:]):
        raise UnreadableError(f"padding of {list(pads)}, uneven")
    return list(pads[:half])


def _window(
    pads: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), **_: object
) -> dict[str, list[int]]:
    """Return PyTorch's arguments for the windows of a convolution or a pooling."""
    return {"stride": list(strides), "padding": _symmetric(pads)}


def _conv(
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    **window: Any,  # noqa: ANN401 - ONNX's attributes
) -> torch.Tensor:
    return functional.conv2d(
        source, weight, bias, dilation=list(dilations), groups=group, **_window(**window)
    )


def _gemm(
    source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **attributes: int
) -> torch.Tensor:
    return functional.linear(source, weight if attributes.get("transB") else weight.t(), bias)


def _max_pool(
    source: torch.Tensor,
    *,
    kernel_shape: Sequence[int],
    dilations: Sequence[int] = (1, 1),
    ceil_mode: int = 0,
    **window: Any,  # noqa: ANN401 - ONNX's attributes
) -> torch.Tensor:
    return functional.max_pool2d(
        source, list(kernel_shape), dilation=list(dilations), ceil_mode=bool(ceil_mode), **_window(**window)
    )


def _average_pool(
    source: torch.Tensor,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **window: Any,  # noqa: ANN401 - ONNX's attributes
) -> torch.Tensor:
    counts = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
    return functional.avg_pool2d(source, list(kernel_shape), **counts, **_window(**window))


def _batch_norm(
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
    "BatchNormalization": _batch_norm,
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
"""The supported operators by ONNX's names; images are (batch, channels, height, width)."""
