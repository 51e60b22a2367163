"""Train a network with PyTorch in one setting; runs inside workers."""

from typing import Any

import torch
from torch import nn

from . import depthwise, torch_networks
from .precisions import Optimization, TrainingJob, TrainingPrecision, TrainingSetting

DTYPES = {TrainingPrecision.BF16: torch.bfloat16, TrainingPrecision.FP16: torch.float16}
MOMENTUM = 0.9


class PyTorchTrainer:
    """A network, its optimizer and all that mixed precision adds."""

    def __init__(self, job: TrainingJob) -> None:
        optimizations = job.setting.optimizations
        self._device = torch.device(job.device)
        self._dtype = DTYPES.get(job.setting.precision)
        configure_process(job.setting)
        channels_last = Optimization.CHANNELS_LAST in optimizations
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        torch.manual_seed(job.seed)
        model = torch_networks.build(job.network, classes=job.classes, small_head=job.small_head)
        if Optimization.DEPTHWISE in optimizations:
            depthwise.replace_in(model)
        self._model = model.to(device=self._device, memory_format=self._format)
        self._optimizer = _make_optimizer(job, self._model)
        # fp16 ends at 65,504 and its small gradients would be 0; bf16 has the range of FP32.
        is_fp16 = job.setting.precision is TrainingPrecision.FP16
        self._scaler = torch.amp.GradScaler(job.device, enabled=is_fp16)
        compiles = Optimization.COMPILE in optimizations
        self._loss = torch.compile(self._compute_loss) if compiles else self._compute_loss

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        placed = images.to(device=self._device).contiguous(memory_format=self._format)
        return placed, labels.to(self._device)

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(images, labels)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        self._model.eval()
        placed, _ = self.place(images, torch.zeros(0, dtype=torch.int64))
        with torch.no_grad(), self._autocast():
            answers: torch.Tensor = self._model(placed).float().cpu()
        self._model.train()
        return answers

    def _compute_loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            logits = self._model(images)
        return nn.functional.cross_entropy(logits.float(), labels)

    def _autocast(self) -> Any:  # noqa: ANN401 - torch ships no types here
        return torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype is not None)


def configure_process(setting: TrainingSetting) -> None:
    """Set what holds for a whole process: TF32 on or off for all that stays in FP32, and denormals."""
    precision = "tf32" if setting.precision is TrainingPrecision.TF32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision
    torch.backends.cudnn.benchmark = True
    if Optimization.FLUSH in setting.optimizations:
        torch.set_flush_denormal(True)


def _make_optimizer(job: TrainingJob, model: nn.Module) -> torch.optim.Optimizer:
    # None leaves the choice to PyTorch, which the baseline is about.
    fused = True if Optimization.FUSED in job.setting.optimizations else None
    options: dict[str, Any] = {"lr": job.learning_rate, "fused": fused}
    if job.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), **options)
    return torch.optim.SGD(model.parameters(), momentum=MOMENTUM, **options)
