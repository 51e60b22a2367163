"""Divide scikit-learn's 1,797 digits into five folds; runs inside workers that have NumPy and scikit-learn.

A network is trained on four fifths of the images, so that every image is judged by one that has not seen it.
"""

from dataclasses import dataclass

import numpy as np

FOLDS = 5
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A division of the images: (n, 1, 8, 8) float32 from -0.5 to 0.5; labels (n,) int64."""

    training: np.ndarray
    training_labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


def load_folds(seed: int) -> list[Fold]:
    """Divide the images at random; each is held out in one fold."""
    # scikit-learn is not installed where only other networks run.
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]  # noqa: PLC0415

    data = load_digits()
    images = (data.images[:, None] / 16 - 0.5).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    folds = []
    for number in range(FOLDS):
        held_out, training = order[number::FOLDS], np.delete(order, slice(number, None, FOLDS))
        folds.append(
            Fold(
                training=images[training],
                training_labels=data.target[training],
                held_out=images[held_out],
                held_out_labels=data.target[held_out],
            )
        )
    return folds
