"""Build the networks as ONNX graphs with random weights: VGG, ResNet-50, SSD300 and a tiny one for tests.

Weights are drawn, not trained: the graphs show speed, size and numerical agreement, but not accuracy. Batch
normalisation is folded, as an exporter leaves it in evaluation mode.

timm and torchvision could export these networks, but need PyTorch (941 MB) in environments that have 177 MB
(ONNX Runtime) and 500 MB (OpenVINO) without it, and other graphs would change every figure measured so far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .onnx_graph import GraphBuilder, Padding, make_model, save

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
    """Add the layers of a VGG whose five stages are so many convolutions deep.

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
