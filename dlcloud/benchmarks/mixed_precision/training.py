"""Train one setting: for timing, to prove by its kernels in which precision it computes, or to the end.

Runs inside workers. `train`, `prove` and `train_digits` are factories that the program asks for by name.
"""

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ..harness.case import UntimedWorkload
from ..harness.digits import CLASSES, FOLDS, Fold, load_folds
from ..harness.kernels import capture_output
from ..harness.roofline import Peak
from ..harness.torch_roofline import count_work, measure_peak
from ..harness.usage import MIB
from .settings import BASELINE, DIGITS, KernelCounts, TrainingJob, count_cuda_kernels, count_onednn_kernels

PROVEN_STEPS = 3

DIGITS_LEARNING_RATE = 1e-3


class Trainer(Protocol):
    """A network with its optimizer, in some framework and some setting."""

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Bring images (batch, 3, size, size) float32 and labels (batch,) int64 to the device and layout."""

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        """Train on a batch and return its loss, when the update is done."""

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, classes) float32 of images in evaluation mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Steps on one batch that stays in memory: training is timed, not reading."""

    trainer: Trainer
    batch: tuple[Any, Any]  # images and labels, placed
    items_per_step: int  # images of the batch
    facts: Mapping[str, Any]  # what is known before it is timed
    precision: str  # what it computes in, as TrainingPrecision names it
    device: str  # cpu or cuda
    # What is compared with other settings; random weights have nothing to compare.
    results: Sequence[list[float]] = ()

    def step(self) -> None:
        self.trainer.step(*self.batch)

    def outputs(self) -> list[list[float]]:
        return list(self.results)

    def measure_peak(self, seconds: float) -> Peak:
        return measure_peak(self.precision, device=self.device, seconds=seconds)


def train(**arguments: Any) -> Training:  # noqa: ANN401 - those of TrainingJob.parse
    """Prepare a network for timing; the first step, with all compilation, is done."""
    job = TrainingJob.parse(**arguments)
    trainer, batch, _, seconds = _start(job)
    facts = {
        **engine_facts(job.framework, job.device),
        "weights": "random",
        "optimizer": job.optimizer,
        "threads": torch.get_num_threads(),
        "image_size": job.size,
        "first_step_s": round(seconds, 3),
    }
    return Training(
        trainer=trainer,
        batch=batch,
        items_per_step=job.batch,
        facts=facts,
        precision=job.setting.precision.value,
        device=job.device,
    )


def prove(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of TrainingJob.parse
    """Train a few steps and report which kernels the last of them ran.

    Facts: kernels {name: runs}; kernels_in_precision and kernels_in_all; first_step_s, with all compilation;
    first_losses; the work of an image, if it is the baseline; memory_mib, the most that the process had of
    the device's memory.
    """
    if arguments["network"] == DIGITS:
        arguments["classes"] = CLASSES
    job = TrainingJob.parse(**arguments)
    trainer, batch, first_loss, seconds = _start(job)
    losses = [first_loss, *(trainer.step(*batch) for _ in range(PROVEN_STEPS - 2))]
    loss, kernels = _step_watched(trainer, batch, job)
    work = count_work(lambda: trainer.step(*batch), job.batch) if job.setting == BASELINE else None
    return UntimedWorkload(
        facts={
            "kernels": dict(kernels.runs.most_common()),
            "kernels_in_precision": kernels.in_precision,
            "kernels_in_all": kernels.total,
            "first_step_s": round(seconds, 3),
            "first_losses": [round(loss, 5) for loss in (*losses, loss)],
            "memory_mib": round(peak_memory_mib(job.device), 1),
            **gpu_facts(job.device),
            **(work.facts() if work else {}),
        }
    )


def train_digits(*, epochs: int, **arguments: Any) -> Training:  # noqa: ANN401 - as above
    """Train a small network on every fold of the digits, judge, and keep the last network for timing.

    Weights, division and order of the images are drawn from the seed alone: settings differ in nothing but
    their arithmetic. Results: for each image, fold by fold, 1 if the network that had not seen it answers
    correctly, else 0; and the mean loss of each epoch, over all folds.
    """
    job = TrainingJob.parse(**arguments, classes=CLASSES, learning_rate=DIGITS_LEARNING_RATE)
    torch.set_num_threads(job.threads)
    began = time.perf_counter()
    folds = load_folds(job.seed)
    learned = [_learn_fold(fold, job=job, epochs=epochs) for fold in folds]
    correct = [float(hit) for *_, hits in learned for hit in hits]
    last, losses = learned[-1][0], np.sum([losses for _, losses, _ in learned], axis=0)
    curve = [round(float(loss), 5) for loss in losses / FOLDS]
    images, labels = _to_tensors(folds[-1].training, folds[-1].training_labels)
    return Training(
        trainer=last,
        batch=last.place(images[: job.batch], labels[: job.batch]),
        items_per_step=job.batch,
        precision=job.setting.precision.value,
        device=job.device,
        results=[correct, curve],
        facts={
            **engine_facts(job.framework, job.device),
            **gpu_facts(job.device),
            "weights": "trained",
            "accuracy_percent": round(100 * sum(correct) / len(correct), 4),
            "images_judged": len(correct),
            "loss_curve": curve,
            "trained_in_s": round(time.perf_counter() - began, 2),
        },
    )


def _start(job: TrainingJob) -> tuple[Trainer, tuple[Any, Any], float, float]:
    """Return a trainer after its first step, the batch, and that step's loss and seconds."""
    torch.set_num_threads(job.threads)
    trainer = build_trainer(job)
    generator = torch.Generator().manual_seed(job.seed)
    images = torch.randn(job.batch, 3, job.size, job.size, generator=generator)
    labels = torch.randint(job.classes, (job.batch,), generator=generator)
    batch = trainer.place(images, labels)
    began = time.perf_counter()
    loss = trainer.step(*batch)
    return trainer, batch, loss, time.perf_counter() - began


def _step_watched(trainer: Trainer, batch: tuple[Any, Any], job: TrainingJob) -> tuple[float, KernelCounts]:
    precision = job.setting.precision
    if job.device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            loss = trainer.step(*batch)
        names = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
        return loss, count_cuda_kernels(names, precision)
    with capture_output() as log, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        loss = trainer.step(*batch)
    return loss, count_onednn_kernels(log, precision)


def _to_tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 3, 8, 8) float32, the grey in every channel, and labels (n,) int64."""
    return torch.from_numpy(images).repeat(1, 3, 1, 1), torch.from_numpy(labels.astype(np.int64))


def _learn_fold(fold: Fold, *, job: TrainingJob, epochs: int) -> tuple[Trainer, np.ndarray, list[float]]:
    """Train a new network on a fold, and judge it by the images that the fold holds out.

    Returns:
        The trainer, the mean loss of each epoch, and 1 for each held-out image that it recognizes, else 0.
    """
    trainer = build_trainer(job)
    losses = _learn(trainer, *_to_tensors(fold.training, fold.training_labels), job=job, epochs=epochs)
    images, labels = _to_tensors(fold.held_out, fold.held_out_labels)
    correct = (trainer.logits(images).argmax(dim=1) == labels).float().tolist()
    return trainer, losses, correct


def _learn(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor, *, job: TrainingJob, epochs: int
) -> np.ndarray:
    """Train and return the mean loss of each epoch; images that do not fill a batch are left out."""
    generator = torch.Generator().manual_seed(job.seed)
    size = job.batch
    curve = np.zeros(epochs)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        batches = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
        losses = [trainer.step(*trainer.place(images[batch], labels[batch])) for batch in batches]
        curve[epoch] = np.mean(losses)
    return curve


def build_trainer(job: TrainingJob) -> Trainer:
    """Make a trainer of the job's framework; only that framework is imported."""
    # Keras is not installed where only PyTorch was asked for.
    if job.framework == "keras":
        from .keras_engine import KerasTrainer  # noqa: PLC0415

        return KerasTrainer(job)
    from .pytorch_engine import PyTorchTrainer  # noqa: PLC0415

    return PyTorchTrainer(job)


def engine_facts(framework: str, device: str) -> dict[str, Any]:
    engine = f"PyTorch {torch.__version__}"
    if framework == "keras":
        import keras  # noqa: PLC0415

        engine = f"Keras {keras.__version__} on {engine}"
    return {"engine": engine, "device": device}


def gpu_facts(device: str) -> dict[str, Any]:
    """Return the GPU's name, its compute capability and the most that tensors took; nothing on a CPU."""
    if device != "cuda":
        return {}
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": f"{major}.{minor}",
        "cuda_max_allocated_mib": round(torch.cuda.max_memory_allocated() / MIB, 1),
    }


def peak_memory_mib(device: str) -> float:
    """Return the most memory that the process took: resident, or of the GPU with what CUDA itself needs."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return float(total - free) / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
