"""Networks as ONNX graphs with random weights: VGG, ResNet-50, SSD300, a tiny one for tests, and peaks.

Weights are drawn from one seed, not trained: the graphs show speed, size and numerical agreement, but not
accuracy. Batch normalisation is folded, as an exporter leaves it in evaluation mode. `measure_peak` runs
graphs of one product of matrices or one pass over memory: what an engine reaches at best.

timm and torchvision could export these networks, but need PyTorch (941 MB) in environments that have 177 MB
(ONNX Runtime) and 500 MB (OpenVINO) without it, and other graphs would change every figure measured so far.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..harness.roofline import Peak, array_values, best_product, best_rate

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
    # The large initializers by name. Next to the message: each copy of VGG16's half gigabyte takes as long as
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


REVISION = 2
"""Counts changes of these graphs; part of the name of a cached file."""

CLASSES = 1000

VGG_CHANNELS = ((3, 64), (64, 128), (128, 256), (256, 512), (512, 512))
VGG16_DEPTHS, VGG19_DEPTHS = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)

# Each residual block adds a branch to its input. With the branch's last convolution at a gain of a quarter of
# He's, the variance grows by 1/16 a block instead of doubling, and the 16 blocks of ResNet-50 stay in range.
RESIDUAL_GAIN = 0.25

SSD_SIZE = 300
SSD_CLASSES = 21
SSD_BOXES = 8732

NORMALISED_TO = 20.0
"""Length to which the features of the fourth stage are scaled at every place."""

# By source of predictions: channels, and boxes at each of its places.
SSD_SOURCES = ((512, 4), (1024, 6), (512, 6), (256, 6), (256, 4), (256, 4))

SSD_HEAD_GAIN = 0.5
"""Keeps random predictions at the size that trained ones have."""

Outputs = dict[str, tuple[int, ...]]
"""By name, the shape of each output without the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network that can be built."""

    name: str  # as typed after `--network`
    size: int  # height and width of an input image in pixels; images are (batch, 3, size, size) float32
    # Adds the layers to a graph under construction and returns its outputs.
    build: Callable[[GraphBuilder], Outputs]


def write(network: Network, seed: int, target: Path) -> None:
    """Write a network with weights drawn from `seed` as an ONNX file; its batch is left open.

    Input `images`: (batch, 3, size, size) float32. Outputs: logits (batch, CLASSES) float32, or those of
    SSD300.
    """
    builder = GraphBuilder(np.random.default_rng(seed))
    outputs = network.build(builder)
    make_model(builder, outputs, name=network.name, shape=(3, network.size, network.size))
    save(builder, target)


def _vgg_stage(builder: GraphBuilder, source: str, channels: tuple[int, int], depth: int) -> str:
    """Add the convolutions of a stage, without its pooling."""
    inputs, width = channels
    for _ in range(depth):
        source = builder.relu(builder.conv(source, (inputs, width)))
        inputs = width
    return source


def _vgg(builder: GraphBuilder, depths: tuple[int, ...]) -> Outputs:
    """Add the layers of a VGG whose five stages have these numbers of convolutions.

    Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks", table 1, columns D and E.
    """
    value = "images"
    for channels, depth in zip(VGG_CHANNELS, depths, strict=True):
        value = builder.max_pool(_vgg_stage(builder, value, channels, depth))
    value = builder.node("Flatten", [value])
    value = builder.relu(builder.dense(value, 512 * 7 * 7, 4096))
    value = builder.relu(builder.dense(value, 4096, 4096))
    return {builder.dense(value, 4096, CLASSES): (CLASSES,)}


def _resnet50(builder: GraphBuilder) -> Outputs:
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


def _ssd300(builder: GraphBuilder) -> Outputs:
    """Add SSD300 with VGG16 as its base: the network alone, without the choice among its boxes.

    Outputs: the places of the boxes, (8732, 4), and the logits of their classes, (8732, 21).

    Source: Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 3.1 and figure 2, on PASCAL VOC.
    """
    sources = [*_ssd_base(builder)]
    sources += _ssd_extra(builder, sources[-1])
    sources[0] = _ssd_normalize(builder, sources[0])
    places, classes = (
        [
            _ssd_head(builder, source, channels, boxes, values)
            for source, (channels, boxes) in zip(sources, SSD_SOURCES, strict=True)
        ]
        for values in (4, SSD_CLASSES)
    )
    return {
        builder.node("Concat", places, axis=1): (SSD_BOXES, 4),
        builder.node("Concat", classes, axis=1): (SSD_BOXES, SSD_CLASSES),
    }


def _ssd_base(builder: GraphBuilder) -> tuple[str, str]:
    """Add VGG16 up to its fifth stage and the two convolutions that stand for its dense layers."""
    value, depths = "images", VGG16_DEPTHS
    for channels, depth in zip(VGG_CHANNELS[:3], depths[:3], strict=True):
        # The third pooling rounds up: 75 to 38.
        value = _vgg_stage(builder, value, channels, depth)
        value = builder.max_pool(value, ceil=channels == VGG_CHANNELS[2])
    fourth = _vgg_stage(builder, value, VGG_CHANNELS[3], depths[3])
    value = _vgg_stage(builder, builder.max_pool(fourth), VGG_CHANNELS[4], depths[4])
    value = builder.max_pool(value, kernel=3, stride=1, pad=1)
    value = builder.relu(builder.conv(value, (512, 1024), padding=Padding(6, dilation=6)))
    return fourth, builder.relu(builder.conv(value, (1024, 1024), kernel=1))


def _ssd_extra(builder: GraphBuilder, source: str) -> list[str]:
    """Add the four pairs of convolutions that shrink the features to a single place."""
    sources = []
    channels = 1024
    for width, stride, pad in ((256, 2, 1), (128, 2, 1), (128, 1, 0), (128, 1, 0)):
        source = builder.relu(builder.conv(source, (channels, width), kernel=1))
        channels = 2 * width
        source = builder.relu(builder.conv(source, (width, channels), stride=stride, padding=Padding(pad)))
        sources.append(source)
    return sources


def _ssd_normalize(builder: GraphBuilder, source: str) -> str:
    """Scale the features at every place to one length."""
    scale = builder.constant(np.full((1, SSD_SOURCES[0][0], 1, 1), NORMALISED_TO, dtype=np.float32))
    return builder.node("Mul", [builder.node("LpNormalization", [source], axis=1, p=2), scale])


def _ssd_head(builder: GraphBuilder, source: str, channels: int, boxes: int, values: int) -> str:
    """Add a convolution that predicts `values` for each box: (batch, boxes at all places, values)."""
    predicted = builder.conv(source, (channels, boxes * values), gain=SSD_HEAD_GAIN)
    by_place = builder.node("Transpose", [predicted], perm=[0, 2, 3, 1])
    shape = builder.constant(np.array([0, -1, values], dtype=np.int64))
    return builder.node("Reshape", [by_place, shape])


def _tiny(builder: GraphBuilder) -> Outputs:
    """Add a network with each kind of layer of the big ones, of a few thousand weights."""
    value = builder.relu(builder.conv("images", (3, 16), stride=2))
    value = builder.max_pool(value)
    value = _bottleneck(builder, value, 16, 16, 1)
    value = _bottleneck(builder, value, 64, 16, 1)
    return _head(builder, value, 64)


def _head(builder: GraphBuilder, source: str, channels: int) -> Outputs:
    pooled = builder.node("GlobalAveragePool", [source])
    return {builder.dense(builder.node("Flatten", [pooled]), channels, CLASSES): (CLASSES,)}


NETWORKS = {
    network.name: network
    for network in (
        Network(name="vgg16", size=224, build=partial(_vgg, depths=VGG16_DEPTHS)),
        Network(name="vgg19", size=224, build=partial(_vgg, depths=VGG19_DEPTHS)),
        Network(name="resnet50", size=224, build=_resnet50),
        Network(name="ssd300", size=SSD_SIZE, build=_ssd300),
        Network(name="tiny", size=32, build=_tiny),
    )
}

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
