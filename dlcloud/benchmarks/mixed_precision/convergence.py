"""Train a small network to the end on scikit-learn's 1,797 digits: does the loss fall as it does in FP32?

Five networks are trained, each on four fifths of the images, so that every image is judged by one that has
not seen it. Weights, division and order of the images are drawn from the seed alone: settings differ in
nothing but their arithmetic. Runs inside workers.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-not-found]

from .settings import Setting
from .training import Trainer, build, engine_facts, gpu_facts

FOLDS = 5
CLASSES = 10
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A network that has learned, made ready to go on for timing.

    Attributes:
        right: For each image whether the network that had not seen it answers rightly, 1 or 0.
        losses: The mean loss of each epoch, over all folds.
    """

    trainer: Trainer
    batch: tuple[Any, Any]
    items_per_step: int
    facts: Mapping[str, Any]
    right: list[float]
    losses: list[float]

    def step(self) -> None:
        """Train on the batch."""
        self.trainer.step(*self.batch)

    def outputs(self) -> list[list[float]]:
        """Return what comparison.compare_training takes."""
        return [self.right, self.losses]


def train_digits(
    *,
    framework: str,
    setting: str,
    batch: int,
    threads: int,
    seed: int,
    epochs: int,
    **described: Any,  # noqa: ANN401
) -> Learned:
    """Train on every fold, judge, and keep the last network for timing."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    images, labels = _digits()
    order = np.random.default_rng(seed).permutation(len(images))
    right = np.zeros(len(images))
    losses = np.zeros(epochs)
    for fold in range(FOLDS):
        held_out = torch.from_numpy(order[fold::FOLDS])
        seen = torch.from_numpy(np.delete(order, slice(fold, None, FOLDS)))
        trainer = build(
            framework, setting=Setting.parse(setting), classes=CLASSES, seed=seed,
            learning_rate=LEARNING_RATE, **described,
        )  # fmt: skip
        losses += _learn(trainer, images[seen], labels[seen], batch=batch, epochs=epochs, seed=seed)
        answers = trainer.logits(images[held_out]).argmax(dim=1)
        right[held_out.numpy()] = (answers == labels[held_out]).numpy()
    curve = [round(float(loss), 5) for loss in losses / FOLDS]
    return Learned(
        trainer=trainer,
        batch=trainer.place(images[seen][:batch], labels[seen][:batch]),
        items_per_step=batch,
        right=right.tolist(),
        losses=curve,
        facts={
            **engine_facts(framework, described["device"]),
            **gpu_facts(described["device"]),
            "weights": "trained",
            "accuracy_percent": round(100 * float(right.mean()), 4),
            "images_judged": len(images),
            "loss_curve": curve,
            "trained_in_s": round(time.perf_counter() - began, 2),
        },
    )


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 3, 8, 8) float32 from -0.5 to 0.5 and labels (1797,) int64."""
    data = load_digits()
    grey = torch.from_numpy((data.images / 16 - 0.5).astype(np.float32))
    return grey[:, None].repeat(1, 3, 1, 1), torch.from_numpy(data.target.astype(np.int64))


def _learn(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor, *, batch: int, epochs: int, seed: int
) -> np.ndarray:
    """Train for so many epochs and return the mean loss of each; what does not fill a batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    curve = np.zeros(epochs)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        batches = [order[start : start + batch] for start in range(0, len(order) - batch + 1, batch)]
        losses = [trainer.step(*trainer.place(images[chosen], labels[chosen])) for chosen in batches]
        curve[epoch] = np.mean(losses)
    return curve
