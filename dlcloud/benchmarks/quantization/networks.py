"""Build the networks as ONNX graphs with random weights: VGG, ResNet-50, SSD300 and a tiny one for tests.

Weights are drawn, not trained, so the graphs say everything about speed, size and numerical agreement and
nothing about accuracy. Batch normalisation is folded, as an exporter leaves it in evaluation mode.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from . import ssd
from .graph import GraphBuilder, model_of

REVISION = 2
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
        build: Adds the layers to a graph under construction and returns its outputs by name, each with its
            shape without the batch.
    """

    name: str
    size: int
    build: Callable[[GraphBuilder], dict[str, tuple[int, ...]]]


def build(network: Network, seed: int) -> onnx.ModelProto:
    """Build a network with weights drawn from `seed`; its batch is left open.

    Input `images`: (batch, 3, size, size) float32. Outputs: logits (batch, CLASSES) float32, or what ssd.py
    says.
    """
    builder = GraphBuilder(np.random.default_rng(seed))
    outputs = network.build(builder)
    return model_of(builder, outputs, name=network.name, shape=(3, network.size, network.size))


def _vgg(builder: GraphBuilder, depths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Add the layers of a VGG whose five stages are so many convolutions deep.

    Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks", table 1, columns D and E.
    """
    value, channels = "images", 3
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            value = builder.relu(builder.conv(value, (channels, width)))
            channels = width
        value = builder.max_pool(value)
    value = builder.node("Flatten", [value])
    value = builder.relu(builder.dense(value, 512 * 7 * 7, 4096))
    value = builder.relu(builder.dense(value, 4096, 4096))
    return {builder.dense(value, 4096, CLASSES): (CLASSES,)}


def _vgg16(builder: GraphBuilder) -> dict[str, tuple[int, ...]]:
    return _vgg(builder, (2, 2, 3, 3, 3))


def _vgg19(builder: GraphBuilder) -> dict[str, tuple[int, ...]]:
    return _vgg(builder, (2, 2, 4, 4, 4))


def _resnet50(builder: GraphBuilder) -> dict[str, tuple[int, ...]]:
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


def _tiny(builder: GraphBuilder) -> dict[str, tuple[int, ...]]:
    """Add a network with each kind of layer of the big ones, of a few thousand weights."""
    value = builder.relu(builder.conv("images", (3, 16), stride=2))
    value = builder.max_pool(value)
    value = _bottleneck(builder, value, 16, 16, 1)
    value = _bottleneck(builder, value, 64, 16, 1)
    return _head(builder, value, 64)


def _head(builder: GraphBuilder, source: str, channels: int) -> dict[str, tuple[int, ...]]:
    pooled = builder.node("GlobalAveragePool", [source])
    return {builder.dense(builder.node("Flatten", [pooled]), channels, CLASSES): (CLASSES,)}


NETWORKS = {
    network.name: network
    for network in (
        Network(name="vgg16", size=224, build=_vgg16),
        Network(name="vgg19", size=224, build=_vgg19),
        Network(name="resnet50", size=224, build=_resnet50),
        Network(name="ssd300", size=ssd.SIZE, build=ssd.ssd300),
        Network(name="tiny", size=32, build=_tiny),
    )
}
