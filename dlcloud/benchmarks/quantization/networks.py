"""Build the networks as ONNX graphs with random weights: VGG16, ResNet-50 and a tiny one for tests.

Weights are drawn, not trained, so the graphs say everything about speed, size and numerical agreement and
nothing about accuracy. Batch normalisation is folded, as an exporter leaves it in evaluation mode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 21
"""Version of the ONNX operator set that the graphs are written in."""

IR_VERSION = 10
"""ONNX file format that came with opset 21."""

REVISION = 1
"""Counts changes of these graphs; part of the name of a cached file."""

CLASSES = 1000

# Each residual block adds a branch to its input. With the branch's last convolution at a gain of a quarter of
# He's, the variance grows by 1/16 a block instead of doubling, and the 16 blocks of ResNet-50 stay in range.
RESIDUAL_GAIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network that can be built.

    Attributes:
        name: As typed after `--network`.
        size: Height and width of an input image in pixels; images are (batch, 3, size, size) float32.
        build: Adds the layers to a graph under construction and returns the name of the logits.
    """

    name: str
    size: int
    build: Callable[["GraphBuilder"], str]


@dataclass(slots=True)
class GraphBuilder:
    """An ONNX graph under construction, every layer of it with random weights from one seed."""

    generator: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def conv(
        self, source: str, channels: tuple[int, int], *, kernel: int = 3, stride: int = 1, gain: float = 1.0
    ) -> str:
        """Add a convolution from channels[0] to channels[1] with bias, padded by kernel // 2."""
        inputs, outputs = channels
        weight = self._normal((outputs, inputs, kernel, kernel), fan_in=inputs * kernel * kernel, gain=gain)
        bias = self._bias(outputs)
        attributes = {
            "kernel_shape": [kernel, kernel],
            "strides": [stride, stride],
            "pads": [kernel // 2] * 4,
        }
        return self.node("Conv", [source, weight, bias], **attributes)

    def dense(self, source: str, inputs: int, outputs: int) -> str:
        """Add a fully connected layer with bias; its weight is (outputs, inputs), as PyTorch exports it."""
        weight = self._normal((outputs, inputs), fan_in=inputs, gain=1.0)
        return self.node("Gemm", [source, weight, self._bias(outputs)], transB=1)

    def relu(self, source: str) -> str:
        """Add a rectifier."""
        return self.node("Relu", [source])

    def max_pool(self, source: str, *, kernel: int = 2, stride: int = 2, pad: int = 0) -> str:
        """Add a maximum pooling."""
        attributes = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [pad] * 4}
        return self.node("MaxPool", [source], **attributes)

    def node(self, operator: str, inputs: list[str], **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
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
        """Add weights and return their name."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name


def build(network: Network, seed: int) -> onnx.ModelProto:
    """Build a network with weights drawn from `seed`; its batch is left open.

    Input `images`: (batch, 3, size, size) float32. Output: logits (batch, CLASSES) float32.
    """
    builder = GraphBuilder(np.random.default_rng(seed))
    logits = network.build(builder)
    shape = (3, network.size, network.size)
    return model_of(builder, logits, name=network.name, shape=shape, classes=CLASSES)


def model_of(
    builder: GraphBuilder, logits: str, *, name: str, shape: tuple[int, int, int], classes: int
) -> onnx.ModelProto:
    """Make a model of a graph from `images`, (batch, *shape) float32, to logits (batch, classes) float32."""
    graph = helper.make_graph(
        builder.nodes,
        name,
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, ["batch", classes])],
        builder.weights,
    )
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="dlcloud benchmarks"
    )


def _vgg16(builder: GraphBuilder) -> str:
    """Add VGG16's layers.

    Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks", table 1, column D.
    """
    value, channels = "images", 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            value = builder.relu(builder.conv(value, (channels, width)))
            channels = width
        value = builder.max_pool(value)
    value = builder.node("Flatten", [value])
    value = builder.relu(builder.dense(value, 512 * 7 * 7, 4096))
    value = builder.relu(builder.dense(value, 4096, 4096))
    return builder.dense(value, 4096, CLASSES)


def _resnet50(builder: GraphBuilder) -> str:
    """Add ResNet-50's layers, the stride in the 3 by 3 convolution as frameworks have it today (v1.5).

    Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
    """
    value = builder.relu(builder.conv("images", (3, 64), kernel=7, stride=2))
    value = builder.max_pool(value, kernel=3, stride=2, pad=1)
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            value = _bottleneck(builder, value, channels, width, stride)
            channels = 4 * width
    return _head(builder, value, channels)


def _bottleneck(builder: GraphBuilder, source: str, channels: int, width: int, stride: int) -> str:
    """Add a residual block of three convolutions; its output has 4 * width channels."""
    outputs = 4 * width
    shortcut = source
    if stride != 1 or channels != outputs:
        shortcut = builder.conv(source, (channels, outputs), kernel=1, stride=stride, gain=0.7)
    branch = builder.relu(builder.conv(source, (channels, width), kernel=1))
    branch = builder.relu(builder.conv(branch, (width, width), stride=stride))
    branch = builder.conv(branch, (width, outputs), kernel=1, gain=RESIDUAL_GAIN)
    return builder.relu(builder.node("Add", [branch, shortcut]))


def _tiny(builder: GraphBuilder) -> str:
    """Add a network with each kind of layer of the big ones, of a few thousand weights."""
    value = builder.relu(builder.conv("images", (3, 16), stride=2))
    value = builder.max_pool(value)
    value = _bottleneck(builder, value, 16, 16, 1)
    value = _bottleneck(builder, value, 64, 16, 1)
    return _head(builder, value, 64)


def _head(builder: GraphBuilder, source: str, channels: int) -> str:
    pooled = builder.node("GlobalAveragePool", [source])
    return builder.dense(builder.node("Flatten", [pooled]), channels, CLASSES)


NETWORKS = {
    network.name: network
    for network in (
        Network(name="vgg16", size=224, build=_vgg16),
        Network(name="resnet50", size=224, build=_resnet50),
        Network(name="tiny", size=32, build=_tiny),
    )
}
