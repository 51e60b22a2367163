"""Write networks as ONNX graphs, layer by layer, with random weights from one seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

OPSET = 21
"""Version of the ONNX operator set that the graphs are written in."""

IR_VERSION = 10
"""ONNX file format that came with opset 21."""

LARGE_BYTES = 1 << 20
LOW_BITS = 0x7F
"""Bits of a length in a byte of Protocol Buffers, the lowest first; the eighth says that more follow."""


class Padding(NamedTuple):
    """Rows and columns of zeros around the input of a convolution, and the dilation of its kernel."""

    pad: int
    dilation: int = 1


@dataclass(slots=True)
class GraphBuilder:
    """An ONNX graph under construction, its layers with random weights from one seed."""

    generator: np.random.Generator
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    # The large initializers by name. Beside the message: each copy of VGG16's half gigabyte takes as long as
    # drawing a quarter of it.
    large: dict[str, np.ndarray] = field(default_factory=dict)

    def conv(
        self,
        source: str,
        channels: tuple[int, int],
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: Padding | None = None,
        gain: float = 1.0,
    ) -> str:
        """Add a convolution from channels[0] to channels[1] with bias, padded by kernel // 2 by default."""
        inputs, outputs = channels
        pad, dilation = padding or Padding(kernel // 2)
        weight = self._normal((outputs, inputs, kernel, kernel), fan_in=inputs * kernel * kernel, gain=gain)
        bias = self._bias(outputs)
        attributes = {
            "kernel_shape": [kernel, kernel],
            "strides": [stride, stride],
            "pads": [pad] * 4,
            "dilations": [dilation, dilation],
        }
        return self.node("Conv", [source, weight, bias], **attributes)

    def dense(self, source: str, inputs: int, outputs: int) -> str:
        """Add a fully connected layer with bias; its weight is (outputs, inputs), as PyTorch exports it."""
        weight = self._normal((outputs, inputs), fan_in=inputs, gain=1.0)
        return self.node("Gemm", [source, weight, self._bias(outputs)], transB=1)

    def relu(self, source: str) -> str:
        return self.node("Relu", [source])

    def max_pool(
        self, source: str, *, kernel: int = 2, stride: int = 2, pad: int = 0, ceil: bool = False
    ) -> str:
        """Add a maximum pooling; `ceil` keeps an incomplete window at the border."""
        attributes = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [pad] * 4}
        return self.node("MaxPool", [source], **attributes, **({"ceil_mode": 1} if ceil else {}))

    def node(self, operator: str, inputs: list[str], **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        nodes = self.model.graph.node
        name = f"{operator.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _normal(self, shape: tuple[int, ...], *, fan_in: int, gain: float) -> str:
        """Add a weight drawn with He's variance, which keeps the size of activations through rectifiers.

        Source: He et al. 2015, "Delving Deep into Rectifiers", equation 10.
        """
        values = self.generator.standard_normal(shape, dtype=np.float32)
        values *= np.float32(gain * np.sqrt(2.0 / fan_in))
        return self.constant(values)

    def _bias(self, size: int) -> str:
        return self.constant(self.generator.standard_normal(size, dtype=np.float32) * np.float32(0.05))

    def constant(self, values: np.ndarray) -> str:
        weights = self.model.graph.initializer
        name = f"weight_{len(weights)}"
        little_endian = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = weights.add(name=name, dims=values.shape, data_type=data_type)
        if values.nbytes >= LARGE_BYTES:
            self.large[name] = little_endian
        else:
            tensor.raw_data = little_endian.tobytes()
        return name


def make_model(
    builder: GraphBuilder, outputs: Mapping[str, tuple[int, ...]], *, name: str, shape: tuple[int, int, int]
) -> onnx.ModelProto:
    """Make a model of a graph that begins at `images`, (batch, *shape) float32; the batch is left open.

    `outputs` are float32, each with its shape without the batch; `shape` is channels, height and width. Large
    weights stay with the builder: `save` writes both.
    """
    model = builder.model
    model.ir_version = IR_VERSION
    model.producer_name = "dlcloud benchmarks"
    model.opset_import.append(helper.make_opsetid("", OPSET))
    model.graph.name = name
    model.graph.input.append(
        helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", *shape])
    )
    model.graph.output.extend(
        helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["batch", *sizes])
        for output, sizes in outputs.items()
    )
    return model


def save(builder: GraphBuilder, target: Path) -> None:
    """Write a model that was made, with its weights, as an ONNX file; no large weight is copied.

    Source: the encoding of Protocol Buffers; onnx.proto3: `graph` is field 7 of ModelProto, `initializer`
    field 5 of GraphProto, and `raw_data` field 9 of TensorProto.
    """
    rest = onnx.ModelProto()
    rest.CopyFrom(builder.model)
    heads = {}
    for tensor in rest.graph.initializer:
        if tensor.name in builder.large:
            size = builder.large[tensor.name].nbytes
            head = tensor.SerializeToString() + _tag(9, size)
            heads[tensor.name] = _tag(5, len(head) + size) + head
    small = [tensor for tensor in rest.graph.initializer if tensor.name not in builder.large]
    del rest.graph.initializer[:]
    rest.graph.initializer.extend(small)
    graph = rest.graph.SerializeToString()
    rest.ClearField("graph")
    total = len(graph) + sum(len(head) + builder.large[name].nbytes for name, head in heads.items())
    with target.open("wb") as file:
        file.write(rest.SerializeToString() + _tag(7, total) + graph)
        for name, head in heads.items():
            file.write(head)
            builder.large[name].tofile(file)


def _tag(number: int, length: int) -> bytes:
    """Return what begins a field of Protocol Buffers that has a length."""
    encoded = bytearray([number << 3 | 2])
    while length > LOW_BITS:
        encoded.append(length & LOW_BITS | LOW_BITS + 1)
        length >>= LOW_BITS.bit_length()
    return bytes([*encoded, length])
