"""The networks of the mixed-precision benchmark as PyTorch modules, with random weights.

No library replaces them: every figure measured so far would change. torchvision has no MobileNet of the
first version and drops blocks of EfficientNet at random while it trains (stochastic depth). timm has all
families, but its VGG ends in convolutions, and it needs torchvision. Wheels of torchvision are each bound
to one build of PyTorch, and missing for CPU builds of some machines. pytorchcv's VGG fails in the channels-
last layout. A test holds the number of weights to the published one.

Images: (batch, 3, size, size) float32. Output: logits (batch, classes).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

DROPOUT = 0.15
"""Before the small head. Source: the article (Hitachi 2022), section 6-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A network without its head."""

    features: nn.Module  # from images to (batch, channels, height, width)
    channels: int  # of its output
    dropout: float = 0.0  # before the last layer of the published head
    # Makes the published head for so many classes; global pooling and one dense layer if None.
    head: Callable[[int], nn.Module] | None = None


def build(name: str, *, classes: int, small_head: bool) -> nn.Module:
    """Build a network of NETWORKS with so many logits, on it the published or the small head."""
    body = NETWORKS[name]()
    if body.head and not small_head:
        return nn.Sequential(body.features, body.head(classes))
    head = _pooling_head(body.channels, classes, DROPOUT if small_head else body.dropout)
    return nn.Sequential(body.features, head)


def vgg16() -> Body:
    """Return VGG16.

    Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks", table 1, column D.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return Body(features=nn.Sequential(*layers), channels=channels, head=_vgg_head)


def _vgg_head(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(4096, classes),
    )


def resnet50() -> Body:
    """Return ResNet-50, the stride in the 3 by 3 convolution as frameworks have it today (v1.5).

    Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
    """
    layers = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return Body(features=nn.Sequential(*layers), channels=channels)


class Bottleneck(nn.Module):
    """A residual block of three convolutions; its output has 4 * width channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv(channels, width, 1),
            _conv(width, width, 3, stride),
            _conv(width, 4 * width, 1, activation=nn.Identity),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = (
            nn.Identity() if same else _conv(channels, 4 * width, 1, stride, activation=nn.Identity)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute (batch, 4 * width, height / stride, width / stride)."""
        return torch.relu(self.branch(images) + self.shortcut(images))


def mobilenet() -> Body:
    """Return MobileNet.

    Source: Howard et al. 2017, "MobileNets", table 1.
    """
    layers = [_conv(3, 32, 3, 2)]
    channels = 32
    pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for width, stride in pairs:
        layers += [_conv(channels, channels, 3, stride, groups=channels), _conv(channels, width, 1)]
        channels = width
    return Body(features=nn.Sequential(*layers), channels=channels)


def efficientnet(width: float, depth: float, dropout: float) -> Body:
    """Return EfficientNet-B0, its channels (in eights) times `width`, its blocks (rounded up) times `depth`.

    Source: Tan and Le 2019, "EfficientNet", table 1; the scaling of B1 to B5 from the authors' program.
    """
    channels = _round_to_eights(32 * width)
    layers = [_conv(3, channels, 3, 2, activation=nn.SiLU)]
    for expansion, kernel, stride, outputs, blocks in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
    ):  # fmt: skip
        wide = _round_to_eights(outputs * width)
        for block in range(math.ceil(blocks * depth)):
            layers.append(InvertedBottleneck(channels, wide, expansion, kernel, 1 if block else stride))
            channels = wide
    last = 4 * channels
    layers.append(_conv(channels, last, 1, activation=nn.SiLU))
    return Body(features=nn.Sequential(*layers), channels=last, dropout=dropout)


class InvertedBottleneck(nn.Module):
    """A block that widens, convolves each channel by itself, weighs the channels and narrows again."""

    def __init__(self, channels: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [_conv(channels, wide, 1, activation=nn.SiLU)] if expansion > 1 else []
        self.branch = nn.Sequential(
            *widen,
            _conv(wide, wide, kernel, stride, groups=wide, activation=nn.SiLU),
            SqueezeExcitation(wide, max(1, channels // 4)),
            _conv(wide, outputs, 1, activation=nn.Identity),
        )
        self.residual = stride == 1 and channels == outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute (batch, outputs, height / stride, width / stride)."""
        branch: torch.Tensor = self.branch(images)
        return branch + images if self.residual else branch


class SqueezeExcitation(nn.Module):
    """Weighs each channel by the mean of all channels over the image.

    Source: Hu et al. 2017, "Squeeze-and-Excitation Networks", figure 3.
    """

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            *(nn.Conv2d(channels, squeezed, 1), nn.SiLU(inplace=True)),
            *(nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of the same shape."""
        weighed: torch.Tensor = images * self.weigh(images)
        return weighed


def tiny() -> Body:
    """Return a network with each kind of layer of the big ones, of some ten thousand weights."""
    layers = nn.Sequential(
        _conv(3, 16, 3, 2), Bottleneck(16, 16, 1), InvertedBottleneck(64, 32, 2, 3, 2), _conv(32, 64, 1)
    )
    return Body(features=layers, channels=64)


def digits() -> Body:
    layers = nn.Sequential(
        *(_conv(3, 32, 3), _conv(32, 32, 3), nn.MaxPool2d(2)),
        *(_conv(32, 64, 3), _conv(64, 64, 3), nn.MaxPool2d(2)),
    )
    return Body(features=layers, channels=64)


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[..., nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution without bias, padded by kernel // 2, with batch normalisation and activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is nn.Identity:
        return nn.Sequential(*layers)
    return nn.Sequential(*layers, activation(inplace=True))


def _pooling_head(channels: int, classes: int, dropout: float) -> nn.Module:
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *drop, nn.Linear(channels, classes))


def _round_to_eights(channels: float) -> int:
    """Round to a multiple of 8 that is at least nine tenths of the number."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


NETWORKS: dict[str, Callable[[], Body]] = {
    "vgg16": vgg16,
    "mobilenet": mobilenet,
    "resnet50": resnet50,
    "efficientnet-b0": lambda: efficientnet(1.0, 1.0, 0.2),
    "efficientnet-b1": lambda: efficientnet(1.0, 1.1, 0.2),
    "efficientnet-b2": lambda: efficientnet(1.1, 1.2, 0.3),
    "efficientnet-b3": lambda: efficientnet(1.2, 1.4, 0.3),
    "efficientnet-b4": lambda: efficientnet(1.4, 1.8, 0.4),
    "efficientnet-b5": lambda: efficientnet(1.6, 2.2, 0.4),
    "tiny": tiny,
    "digits": digits,
}
