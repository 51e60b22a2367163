"""Draw synthetic images: what calibration, agreement and timing are fed where there is no data set."""

import numpy as np


def draw(count: int, size: int, seed: int) -> np.ndarray:
    """Draw images that differ in structure as photographs do: patches of several sizes, and grain.

    Returns:
        (count, 3, size, size) float32, each image with mean 0 and variance 1, the usual normalised input.
    """
    generator = np.random.default_rng(seed)
    images = np.zeros((count, 3, size, size), dtype=np.float32)
    for cells in (2, 4, 8, 16, size):
        images += _patches(generator, count, size, cells)
    images -= images.mean(axis=(1, 2, 3), keepdims=True)
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return images


def _patches(generator: np.random.Generator, count: int, size: int, cells: int) -> np.ndarray:
    """Draw random colours on a grid of cells by cells, each image with its own contrast."""
    coarse = generator.standard_normal((count, 3, cells, cells), dtype=np.float32)
    coarse *= generator.uniform(0.1, 1.0, size=(count, 1, 1, 1)).astype(np.float32)
    places = np.arange(size) * cells // size
    return coarse[:, :, places[:, None], places[None, :]]
