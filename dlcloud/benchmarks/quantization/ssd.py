"""Add SSD300 with VGG16 as its base to a graph: the network alone, without the choice among its boxes.

Source: Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 3.1 and figure 2, on PASCAL VOC.
"""

import numpy as np

from .graph import GraphBuilder

SIZE = 300
CLASSES = 21
BOXES = 8732

NORMALISED_TO = 20.0
"""Length to which the features of the fourth stage are scaled at every place before they are judged."""

# By source of predictions: channels, and boxes at each of its places.
SOURCES = ((512, 4), (1024, 6), (512, 6), (256, 6), (256, 4), (256, 4))

HEAD_GAIN = 0.5
"""Keeps random predictions at the size that trained ones have."""


def ssd300(builder: GraphBuilder) -> dict[str, tuple[int, ...]]:
    """Add all layers; return where the boxes lie, (8732, 4), and the logits of their classes, (8732, 21)."""
    sources = [*_base(builder)]
    sources += _extra(builder, sources[-1])
    sources[0] = _normalised(builder, sources[0])
    places = [
        _head(builder, source, channels, boxes, 4)
        for source, (channels, boxes) in zip(sources, SOURCES, strict=True)
    ]
    classes = [
        _head(builder, source, channels, boxes, CLASSES)
        for source, (channels, boxes) in zip(sources, SOURCES, strict=True)
    ]
    return {
        builder.node("Concat", places, axis=1): (BOXES, 4),
        builder.node("Concat", classes, axis=1): (BOXES, CLASSES),
    }


def _base(builder: GraphBuilder) -> tuple[str, str]:
    """Add VGG16 up to its fifth stage and the two convolutions that stand for its dense layers."""
    value, channels, fourth = "images", 3, ""
    for stage, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for _ in range(depth):
            value = builder.relu(builder.conv(value, (channels, width)))
            channels = width
        if stage == 4:  # noqa: PLR2004 - conv4_3, the first source
            fourth = value
        # The third pooling rounds up: 75 to 38. The last one keeps the size.
        last = stage == 5  # noqa: PLR2004 - as above
        pooling = {"kernel": 3, "stride": 1, "pad": 1} if last else {}
        value = builder.max_pool(value, **pooling, ceil=stage == 3)  # noqa: PLR2004 - as above
    value = builder.relu(builder.conv(value, (512, 1024), pad=6, dilation=6))
    return fourth, builder.relu(builder.conv(value, (1024, 1024), kernel=1))


def _extra(builder: GraphBuilder, source: str) -> list[str]:
    """Add the four pairs of convolutions that shrink the features to a single place."""
    sources = []
    channels = 1024
    for width, stride, pad in ((256, 2, 1), (128, 2, 1), (128, 1, 0), (128, 1, 0)):
        source = builder.relu(builder.conv(source, (channels, width), kernel=1))
        channels = 2 * width
        source = builder.relu(builder.conv(source, (width, channels), stride=stride, pad=pad))
        sources.append(source)
    return sources


def _normalised(builder: GraphBuilder, source: str) -> str:
    """Scale the features at every place to one length."""
    scale = builder.constant(np.full((1, SOURCES[0][0], 1, 1), NORMALISED_TO, dtype=np.float32))
    return builder.node("Mul", [builder.node("LpNormalization", [source], axis=1, p=2), scale])


def _head(builder: GraphBuilder, source: str, channels: int, boxes: int, values: int) -> str:
    """Add a convolution that predicts `values` for each box: (batch, boxes at all places, values)."""
    predicted = builder.conv(source, (channels, boxes * values), gain=HEAD_GAIN)
    by_place = builder.node("Transpose", [predicted], perm=[0, 2, 3, 1])
    shape = builder.constant(np.array([0, -1, values], dtype=np.int64))
    return builder.node("Reshape", [by_place, shape])
