"""Train one of Keras's own networks on its PyTorch backend, under a dtype policy; runs inside workers."""

from typing import Any

import keras
import numpy as np
import torch
from keras import layers

from .networks import DROPOUT
from .pytorch_engine import MOMENTUM, prepare
from .settings import Knob, Precision, Setting
from .sizes import DIGITS

POLICIES = {
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.BF16: "mixed_bfloat16",
    Precision.FP16: "mixed_float16",
}
APPLICATIONS = {
    "vgg16": keras.applications.VGG16,
    "mobilenet": keras.applications.MobileNet,
    "resnet50": keras.applications.ResNet50,
    **{
        f"efficientnet-b{number}": getattr(keras.applications, f"EfficientNetB{number}")
        for number in range(6)
    },
}


class KerasTrainer:
    """A Keras network, compiled with its optimizer; with fp16 Keras scales the loss by itself.

    Takes what pytorch_engine.PyTorchTrainer takes.
    """

    def __init__(
        self,
        *,
        network: str,
        setting: Setting,
        device: str,
        optimizer: str,
        learning_rate: float,
        classes: int,
        small_head: bool,
        size: int,
        seed: int,
    ) -> None:
        prepare(setting)
        self._device = torch.device(device)
        self._last = Knob.CHANNELS_LAST in setting.knobs
        keras.config.set_image_data_format("channels_last" if self._last else "channels_first")
        keras.config.set_dtype_policy(POLICIES[setting.precision])
        keras.utils.set_random_seed(seed)
        shape = (size, size, 3) if self._last else (3, size, size)
        self._model = _network(network, shape, classes, small_head=small_head)
        self._model.compile(
            optimizer=_optimizer(optimizer, learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=Knob.COMPILE in setting.knobs,
        )

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Bring images (batch, 3, size, size) float32 and labels (batch,) int64 to the device and layout."""
        placed = images.permute(0, 2, 3, 1).contiguous() if self._last else images
        return placed.to(self._device), labels.to(self._device)

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        """Train on a batch and return its loss, when the update is done."""
        loss = self._model.train_on_batch(images, labels)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(np.ravel(loss)[0])

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, classes) float32 of images in evaluation mode."""
        placed, _ = self.place(images, torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            answers: torch.Tensor = self._model(placed, training=False).float().cpu()
        return answers


def _network(name: str, shape: tuple[int, int, int], classes: int, *, small_head: bool) -> Any:  # noqa: ANN401
    """Build a network that answers in logits, with random weights."""
    if name not in APPLICATIONS:
        return _small_network(shape, classes, wide=name == DIGITS)
    make = APPLICATIONS[name]
    if not small_head:
        return make(weights=None, input_shape=shape, classes=classes, classifier_activation=None)
    body = make(weights=None, input_shape=shape, include_top=False)
    pooled = layers.GlobalAveragePooling2D()(body.output)
    return keras.Model(body.input, layers.Dense(classes)(layers.Dropout(DROPOUT)(pooled)))


def _small_network(shape: tuple[int, int, int], classes: int, *, wide: bool) -> Any:  # noqa: ANN401
    """Build what networks.digits builds, or for tests a quarter of it."""
    axis = -1 if keras.config.image_data_format() == "channels_last" else 1
    images = value = layers.Input(shape)
    for width in (32, 64) if wide else (8, 16):
        for _ in range(2):
            value = layers.Conv2D(width, 3, padding="same", use_bias=False)(value)
            value = layers.ReLU()(layers.BatchNormalization(axis=axis)(value))
        value = layers.MaxPooling2D()(value)
    value = layers.GlobalAveragePooling2D()(value)
    return keras.Model(images, layers.Dense(classes)(value))


def _optimizer(name: str, learning_rate: float) -> Any:  # noqa: ANN401
    if name == "adam":
        return keras.optimizers.Adam(learning_rate)
    return keras.optimizers.SGD(learning_rate, momentum=MOMENTUM)
