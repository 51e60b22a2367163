"""Train a small network to the end on scikit-learn's digits: does the loss fall as it does in FP32?

A network is trained for each fold. Weights, division and order of the images are drawn from the seed alone:
settings differ in nothing but their arithmetic. Runs inside workers.
"""

import time
from typing import Any

import numpy as np
import torch

from ..harness.digits import CLASSES, FOLDS, load_folds
from .settings import TrainingJob
from .training import Trainer, Training, build_trainer, engine_facts, gpu_facts

LEARNING_RATE = 1e-3


def train_digits(*, epochs: int, **arguments: Any) -> Training:  # noqa: ANN401 - those of TrainingJob.parse
    """Train on every fold, judge, and keep the last network for timing.

    Results: for each image, fold by fold, 1 if the network that had not seen it answers correctly, else 0;
    and the mean loss of each epoch, over all folds.
    """
    job = TrainingJob.parse(**arguments, classes=CLASSES, learning_rate=LEARNING_RATE)
    torch.set_num_threads(job.threads)
    began = time.perf_counter()
    correct: list[float] = []
    losses = np.zeros(epochs)
    for fold in load_folds(job.seed):
        trainer = build_trainer(job)
        images, labels = _to_tensors(fold.training, fold.training_labels)
        losses += _learn(trainer, images, labels, job=job, epochs=epochs)
        held_out, held_out_labels = _to_tensors(fold.held_out, fold.held_out_labels)
        correct += (trainer.logits(held_out).argmax(dim=1) == held_out_labels).float().tolist()
    curve = [round(float(loss), 5) for loss in losses / FOLDS]
    return Training(
        trainer=trainer,
        batch=trainer.place(images[: job.batch], labels[: job.batch]),
        items_per_step=job.batch,
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


def _to_tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 3, 8, 8) float32, the grey in every channel, and labels (n,) int64."""
    return torch.from_numpy(images).repeat(1, 3, 1, 1), torch.from_numpy(labels.astype(np.int64))


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
