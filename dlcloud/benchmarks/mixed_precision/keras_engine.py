"""Train one of Keras's own networks on its PyTorch backend, under a dtype policy; runs inside workers."""

from typing import Any

import keras
import numpy as np
import torch
from keras import layers

from .pytorch_engine import DROPOUT, MOMENTUM, configure_process
from .settings import DIGITS, Optimization, TrainingJob, TrainingPrecision

POLICIES = {
    TrainingPrecision.FP32: "float32",
    TrainingPrecision.TF32: "float32",
    TrainingPrecision.BF16: "mixed_bfloat16",
    TrainingPrecision.FP16: "mixed_float16",
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
    """A Keras network, compiled with its optimizer; with fp16 Keras scales the loss by itself."""

    def __init__(self, job: TrainingJob) -> None:
        configure_process(job.setting)
        self._device = torch.device(job.device)
        self._channels_last = Optimization.CHANNELS_LAST in job.setting.optimizations
        keras.config.set_image_data_format("channels_last" if self._channels_last else "channels_first")
        keras.config.set_dtype_policy(POLICIES[job.setting.precision])
        keras.utils.set_random_seed(job.seed)
        shape = (job.size, job.size, 3) if self._channels_last else (3, job.size, job.size)
        self._model = _build_network(job, shape)
        self._model.compile(
            optimizer=_make_optimizer(job),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=Optimization.COMPILE in job.setting.optimizations,
        )

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        placed = images.permute(0, 2, 3, 1).contiguous() if self._channels_last else images
        return placed.to(self._device), labels.to(self._device)

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        loss = self._model.train_on_batch(images, labels)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(np.ravel(loss)[0])

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        placed, _ = self.place(images, torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            answers: torch.Tensor = self._model(placed, training=False).float().cpu()
        return answers


def _build_network(job: TrainingJob, shape: tuple[int, int, int]) -> Any:  # noqa: ANN401
    """Build a network that answers in logits, with random weights."""
    if job.network not in APPLICATIONS:
        return _build_small_network(shape, job.classes, wide=job.network == DIGITS)
    make = APPLICATIONS[job.network]
    if not job.small_head:
        return make(weights=None, input_shape=shape, classes=job.classes, classifier_activation=None)
    body = make(weights=None, input_shape=shape, include_top=False)
    pooled = layers.GlobalAveragePooling2D()(body.output)
    return keras.Model(body.input, layers.Dense(job.classes)(layers.Dropout(DROPOUT)(pooled)))


def _build_small_network(shape: tuple[int, int, int], classes: int, *, wide: bool) -> Any:  # noqa: ANN401
    """Build the network of pytorch_engine.digits, or for tests one of a quarter of its width."""
    axis = -1 if keras.config.image_data_format() == "channels_last" else 1
    images = value = layers.Input(shape)
    for width in (32, 64) if wide else (8, 16):
        for _ in range(2):
            value = layers.Conv2D(width, 3, padding="same", use_bias=False)(value)
            value = layers.ReLU()(layers.BatchNormalization(axis=axis)(value))
        value = layers.MaxPooling2D()(value)
    value = layers.GlobalAveragePooling2D()(value)
    return keras.Model(images, layers.Dense(classes)(value))


def _make_optimizer(job: TrainingJob) -> Any:  # noqa: ANN401
    if job.optimizer == "adam":
        return keras.optimizers.Adam(job.learning_rate)
    return keras.optimizers.SGD(job.learning_rate, momentum=MOMENTUM)
