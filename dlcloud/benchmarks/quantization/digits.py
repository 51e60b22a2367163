"""A small VGG trained here on scikit-learn's digits: it shows what a precision costs in accuracy.

A network is trained for each fold. Plain NumPy: 8 by 8 images need no framework, and every engine gets the
same weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..harness.digits import CLASSES, Fold, load_folds

if TYPE_CHECKING:
    import onnx

SIZE = 8

REVISION = 1
"""Counts changes of the network and its training; part of the name of a cached file."""

EPOCHS = 10
BATCH = 32

# Source: Kingma and Ba 2014, "Adam", algorithm 1; its default decays, and a step of 0.002 that falls to 0.
LEARNING_RATE, DECAY, SQUARE_DECAY, EPSILON = 2e-3, 0.9, 0.999, 1e-8


def build(seed: int, target: Path) -> None:
    """Train a network for each fold and write them as ONNX files into the folder `target`."""
    import onnx  # noqa: PLC0415 - to train needs NumPy only

    target.mkdir()
    for number, fold in enumerate(load_folds(seed)):
        layers = train(fold, seed)
        onnx.save(export(layers), str(target / f"fold{number}.onnx"))


def train(fold: Fold, seed: int) -> "list[Layer]":
    generator = np.random.default_rng(seed)
    layers = make_network(generator)
    weighted = [layer for layer in layers if isinstance(layer, Weighted)]
    count = len(fold.training)
    steps = EPOCHS * -(-count // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = generator.permutation(count)
        for start in range(0, count, BATCH):
            batch = order[start : start + BATCH]
            compute_gradients(layers, fold.training[batch], fold.training_labels[batch])
            step += 1
            for layer in weighted:
                layer.update(step, LEARNING_RATE * (1 - step / steps))
    return layers


def logits(layers: "Sequence[Layer]", images: np.ndarray) -> np.ndarray:
    values = images
    for layer in layers:
        values = layer.forward(values)
    return values


class Graph(Protocol):
    """Takes layers as nodes with ONNX's operators; `onnx_graphs.GraphBuilder` is one."""

    def node(self, operator: str, inputs: list[str], **attributes: object) -> str:
        """Add a node; return the name of its output."""

    def constant(self, values: np.ndarray) -> str:
        """Add weights; return their name."""

    def relu(self, source: str) -> str:
        """Add a rectifier."""

    def max_pool(self, source: str) -> str:
        """Add a maximum of 2 by 2."""


class Layer(Protocol):
    """A layer that remembers its last input."""

    def forward(self, source: np.ndarray) -> np.ndarray:
        """Compute the output."""

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        """Turn the gradient of the output into that of the input."""

    def export(self, builder: Graph, source: str) -> str:
        """Add the layer to an ONNX graph and return the name of its output."""


@dataclass(slots=True)
class Weighted:
    """A layer with a matrix (outputs, inputs) and biases, updated by Adam."""

    weight: np.ndarray
    bias: np.ndarray
    source: np.ndarray = field(init=False)
    gradients: tuple[np.ndarray, np.ndarray] = field(init=False)
    moments: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.moments = [np.zeros_like(values) for values in (self.weight, self.bias) for _ in range(2)]

    def update(self, step: int, rate: float) -> None:
        """Take step number `step` (from 1) of Adam."""
        for place, values in enumerate((self.weight, self.bias)):
            gradient = self.gradients[place]
            mean, square = self.moments[2 * place : 2 * place + 2]
            mean += (1 - DECAY) * (gradient - mean)
            square += (1 - SQUARE_DECAY) * (gradient * gradient - square)
            root = np.sqrt(square / (1 - SQUARE_DECAY**step)) + EPSILON
            np.subtract(values, rate / (1 - DECAY**step) * mean / root, out=values, casting="same_kind")


class Dense(Weighted):
    """A fully connected layer; flattens its input."""

    def forward(self, source: np.ndarray) -> np.ndarray:
        """Compute (n, outputs)."""
        self.source = source
        return np.asarray(source.reshape(len(source), -1) @ self.weight.T + self.bias)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        flat = self.source.reshape(len(self.source), -1)
        self.gradients = (gradient.T @ flat, gradient.sum(axis=0))
        return np.asarray((gradient @ self.weight).reshape(self.source.shape))

    def export(self, builder: Graph, source: str) -> str:
        flat = builder.node("Flatten", [source])
        inputs = [flat, builder.constant(self.weight), builder.constant(self.bias)]
        return builder.node("Gemm", inputs, transB=1)


class Convolution(Weighted):
    """A 3 by 3 convolution, padded; its weight is (outputs, channels * 9)."""

    def forward(self, source: np.ndarray) -> np.ndarray:
        """Compute (n, outputs, height, width)."""
        self.source = _extract_patches(source)
        return _convolve(self.source, self.weight, source.shape) + self.bias[:, None, None]

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        rows = gradient.transpose(0, 2, 3, 1).reshape(-1, gradient.shape[1])
        self.gradients = (rows.T @ self.source, rows.sum(axis=0))
        outputs = len(self.weight)
        turned = self.weight.reshape(outputs, -1, 3, 3)[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        return _convolve(_extract_patches(gradient), turned.reshape(-1, 9 * outputs), gradient.shape)

    def export(self, builder: Graph, source: str) -> str:
        weight = builder.constant(self.weight.reshape(len(self.weight), -1, 3, 3))
        inputs = [source, weight, builder.constant(self.bias)]
        return builder.node("Conv", inputs, kernel_shape=[3, 3], pads=[1] * 4)


@dataclass(slots=True)
class Relu:
    """A rectifier."""

    source: np.ndarray = field(init=False)

    def forward(self, source: np.ndarray) -> np.ndarray:
        self.source = source
        return np.maximum(source, 0)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        return gradient * (self.source > 0)

    def export(self, builder: Graph, source: str) -> str:
        return builder.relu(source)


@dataclass(slots=True)
class Pool:
    """A 2 by 2 maximum; equal largest values, as in an even background, share the gradient."""

    largest: np.ndarray = field(init=False)

    def forward(self, source: np.ndarray) -> np.ndarray:
        count, channels, height, width = source.shape
        pooled = source.reshape(count, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5))
        largest = (source == _double(pooled)).astype(source.dtype)
        sharing = largest.reshape(count, channels, height // 2, 2, width // 2, 2).sum(axis=(3, 5))
        self.largest = largest / _double(sharing)
        return np.asarray(pooled)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        return _double(gradient) * self.largest

    def export(self, builder: Graph, source: str) -> str:
        return builder.max_pool(source)


def make_network(generator: np.random.Generator) -> list[Layer]:
    """Make VGG's pattern at the size of a digit, its weights drawn with He's variance."""

    def draw(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        weight = generator.standard_normal((outputs, inputs), dtype=np.float32)
        return weight * np.float32(np.sqrt(2.0 / inputs)), np.zeros(outputs, dtype=np.float32)

    layers: list[Layer] = []
    channels = 1
    for width in (16, 32):
        for _ in range(2):
            layers += [Convolution(*draw(9 * channels, width)), Relu()]
            channels = width
        layers.append(Pool())
    return [*layers, Dense(*draw(channels * 4, 64)), Relu(), Dense(*draw(64, CLASSES))]


def compute_gradients(layers: list[Layer], images: np.ndarray, labels: np.ndarray) -> None:
    """Set in every layer the gradients of the mean cross-entropy."""
    values = logits(layers, images)
    likely = np.exp(values - values.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    likely[np.arange(len(labels)), labels] -= 1
    gradient = likely / np.float32(len(labels))
    for layer in reversed(layers):
        gradient = layer.backward(gradient)


def export(layers: list[Layer]) -> "onnx.ModelProto":
    from .onnx_graphs import GraphBuilder, make_model  # noqa: PLC0415 - as above

    builder = GraphBuilder(np.random.default_rng(0))
    value = write_layers(layers, builder)
    return make_model(builder, {value: (CLASSES,)}, name="digits", shape=(1, SIZE, SIZE))


def write_layers(layers: list[Layer], graph: Graph) -> str:
    value = "images"
    for layer in layers:
        value = layer.export(graph, value)
    return value


def _extract_patches(source: np.ndarray) -> np.ndarray:
    """Return every pixel's 3 by 3 surroundings: (n * height * width, channels * 9)."""
    padded = np.pad(source, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 9 * source.shape[1])


def _convolve(patches: np.ndarray, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    count, _, height, width = shape
    return (patches @ weight.T).reshape(count, height, width, -1).transpose(0, 3, 1, 2)


def _double(values: np.ndarray) -> np.ndarray:
    return values.repeat(2, axis=2).repeat(2, axis=3)
