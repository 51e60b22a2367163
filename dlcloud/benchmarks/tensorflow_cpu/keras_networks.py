"""Build the networks with Keras, random weights from one seed; runs inside workers.

Four are Keras's own applications; AlexNet, GoogLeNet and the tiny one are built here.
"""

import math
from collections.abc import Callable
from typing import Any

from ..harness.kernels import capture_output
from .arguments import CLASSES, SIZES

with capture_output(2):  # TensorFlow's first lines come before it reads TF_CPP_MIN_LOG_LEVEL
    import keras
    import tensorflow as tf

__all__ = ["build", "keras", "tf"]

layers = keras.layers
applications = keras.applications

Tensor = Any  # Keras ships no types

DROPOUT = 0.5
INCEPTION_DROPOUT = 0.4

LAST_SPREAD = 0.01
"""Standard deviation of the last layer's first weights, so that the loss starts near that of a guess."""

UNNORMALISED = {"vgg16"}
"""Applications without batch normalisation."""


def build(network: str, seed: int) -> Tensor:
    """Build a network in the global data format and precision policy.

    Images: (batch, size, size, 3), or (batch, 3, size, size) if the data format is `channels_first`. Output:
    logits (batch, CLASSES).
    """
    keras.utils.set_random_seed(seed)
    size = SIZES[network].image
    channels_last = keras.config.image_data_format() == "channels_last"
    shape = (size, size, 3) if channels_last else (3, size, size)
    if network in APPLICATIONS:
        make = APPLICATIONS[network]
        model = make(weights=None, classes=CLASSES, classifier_activation=None, input_shape=shape)
        if network in UNNORMALISED:
            _strengthen(model)
        return model
    images = keras.Input(shape)
    classes = layers.Dense(CLASSES, kernel_initializer=keras.initializers.RandomNormal(stddev=LAST_SPREAD))
    return keras.Model(images, classes(OWN[network](images)), name=network)


def _strengthen(model: Tensor) -> None:
    """Turn the Glorot start of layers before a rectifier into He's; without it the signal fades to nothing.

    Source: He et al. 2015, "Delving Deep into Rectifiers", section 2.2.
    """
    for layer in model.layers[:-1]:
        if layer.weights:
            layer.kernel.assign(layer.kernel * math.sqrt(2.0))


def _alexnet(images: Tensor) -> Tensor:
    """Return AlexNet's features, in the form for one device.

    Source: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks".
    """
    values = _conv(images, 64, 11, strides=4)
    values = layers.MaxPooling2D(3, 2)(values)
    values = layers.MaxPooling2D(3, 2)(_conv(values, 192, 5))
    for filters in (384, 256, 256):
        values = _conv(values, filters, 3)
    values = layers.Flatten()(layers.MaxPooling2D(3, 2)(values))
    for _ in range(2):
        values = layers.Dropout(DROPOUT)(layers.Dense(4096, activation="relu")(values))
    return values


GOOGLENET = {
    "3": ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    "4": (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    "5": ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
}
"""Filters of each inception block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pool projection.

Source: Szegedy et al. 2014, "Going Deeper with Convolutions", table 1.
"""


def _googlenet(images: Tensor) -> Tensor:
    """Return GoogLeNet's features, without the auxiliary heads and the local response normalisation."""
    values = layers.MaxPooling2D(3, 2, padding="same")(_conv(images, 64, 7, strides=2))
    values = _conv(_conv(values, 64, 1), 192, 3)
    for stage in GOOGLENET.values():
        values = layers.MaxPooling2D(3, 2, padding="same")(values)
        for filters in stage:
            values = _inception(values, filters)
    return layers.Dropout(INCEPTION_DROPOUT)(layers.GlobalAveragePooling2D()(values))


def _inception(values: Tensor, filters: tuple[int, ...]) -> Tensor:
    single, reduced3, three, reduced5, five, pooled = filters
    branches = [
        _conv(values, single, 1),
        _conv(_conv(values, reduced3, 1), three, 3),
        _conv(_conv(values, reduced5, 1), five, 5),
        _conv(layers.MaxPooling2D(3, 1, padding="same")(values), pooled, 1),
    ]
    return layers.Concatenate(axis=_channel_axis())(branches)


def _tiny(images: Tensor) -> Tensor:
    """Return the features of a network of the same kinds of layers whose step takes milliseconds."""
    values = layers.MaxPooling2D(2)(_conv(images, 16, 3))
    convolved = layers.Conv2D(32, 3, padding="same", use_bias=False)(values)
    values = layers.ReLU()(layers.BatchNormalization(axis=_channel_axis())(convolved))
    return layers.Dense(64, activation="relu")(layers.Flatten()(layers.MaxPooling2D(2)(values)))


def _conv(values: Tensor, filters: int, size: int, strides: int = 1) -> Tensor:
    # These networks have no normalisation: Keras's default start would let their signal fade.
    convolution = layers.Conv2D(
        filters, size, strides, padding="same", activation="relu", kernel_initializer="he_normal"
    )
    return convolution(values)


def _channel_axis() -> int:
    return -1 if keras.config.image_data_format() == "channels_last" else 1


APPLICATIONS: dict[str, Callable[..., Any]] = {
    "vgg16": applications.VGG16,
    "resnet50": applications.ResNet50,
    "resnet152": applications.ResNet152,
    "inception3": applications.InceptionV3,
}

OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "tiny": _tiny,
}
