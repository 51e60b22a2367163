"""Train a network with PyTorch in one setting; runs inside workers."""

import copy
from typing import Any

import torch
from torch import nn

from . import depthwise, networks
from .settings import Knob, Precision, Setting

TYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
MOMENTUM = 0.9


class PyTorchTrainer:
    """A network, its optimizer and all that mixed precision adds.

    Args:
        network: One of networks.NETWORKS.
        setting: The precision and the knobs.
        device: cpu or cuda.
        optimizer: sgd (with momentum) or adam.
        learning_rate: Of the optimizer.
        classes: How many the labels are of.
        small_head: As for networks.build.
        size: Height and width of the images; the network takes any.
        seed: Of the weights.
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
        size: int,  # noqa: ARG002 - Keras needs it
        seed: int,
    ) -> None:
        self._device = torch.device(device)
        self._type = TYPES.get(setting.precision)
        prepare(setting)
        last = Knob.CHANNELS_LAST in setting.knobs
        self._format = torch.channels_last if last else torch.contiguous_format
        torch.manual_seed(seed)
        model = networks.build(network, classes=classes, small_head=small_head)
        if Knob.DEPTHWISE in setting.knobs:
            depthwise.replace_in(model)
        self._model = model.to(device=self._device, memory_format=self._format)
        self._optimizer = _optimizer(optimizer, self._model, learning_rate, fused=Knob.FUSED in setting.knobs)
        # fp16 ends at 65,504 and its small gradients would be 0; bf16 has the range of FP32.
        self._scaler = torch.amp.GradScaler(device, enabled=setting.precision is Precision.FP16)
        self._loss = (
            torch.compile(self._compute_loss) if Knob.COMPILE in setting.knobs else self._compute_loss
        )

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Bring images (batch, 3, size, size) float32 and labels (batch,) int64 to the device and layout."""
        placed = images.to(device=self._device).contiguous(memory_format=self._format)
        return placed, labels.to(self._device)

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        """Train on a batch and return its loss, when the update is done."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(images, labels)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, classes) float32 of images in evaluation mode."""
        self._model.eval()
        placed, _ = self.place(images, torch.zeros(0, dtype=torch.int64))
        with torch.no_grad(), self._autocast():
            answers: torch.Tensor = self._model(placed).float().cpu()
        self._model.train()
        return answers

    def weights(self) -> dict[str, Any]:
        """Return a copy of the weights and of the statistics of normalisation."""
        return copy.deepcopy(self._model.state_dict())

    def _compute_loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            logits = self._model(images)
        return nn.functional.cross_entropy(logits.float(), labels)

    def _autocast(self) -> Any:  # noqa: ANN401 - torch ships no types here
        return torch.autocast(self._device.type, dtype=self._type, enabled=self._type is not None)


def prepare(setting: Setting) -> None:
    """Set what holds for a whole process: TF32 on or off for all that stays in FP32, and denormals."""
    precision = "tf32" if setting.precision is Precision.TF32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision
    torch.backends.cudnn.benchmark = True
    if Knob.FLUSH in setting.knobs:
        torch.set_flush_denormal(True)


def _optimizer(name: str, model: nn.Module, learning_rate: float, *, fused: bool) -> torch.optim.Optimizer:
    # None leaves the choice to PyTorch, which the baseline is about.
    options: dict[str, Any] = {"lr": learning_rate, "fused": fused or None}
    if name == "adam":
        return torch.optim.Adam(model.parameters(), **options)
    return torch.optim.SGD(model.parameters(), momentum=MOMENTUM, **options)
