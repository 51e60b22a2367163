"""Draw synthetic images: what calibration, agreement and timing use where there is no data set."""

import numpy as np

CHANNELS = {1, 3, 4}
"""How many an image may have; an input with another shape is no image."""


def draw(count: int, size: int, seed: int) -> np.ndarray:
    """Draw images that differ in structure as photographs do: patches of several sizes, and grain.

    Returns:
        (count, 3, size, size) float32, each image with mean 0 and variance 1, the usual normalised input.
    """
    generator = np.random.default_rng(seed)
    images = np.zeros((count, 3, size, size), dtype=np.float32)
    for cells in (2, 4, 8, 16, size):
        images += _draw_patches(generator, count, size, cells)
    images -= images.mean(axis=(1, 2, 3), keepdims=True)
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return images


def draw_shape(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Draw images of a shape, channels first or last: (count, *shape) float32.

    Raises:
        ValueError: The shape is not that of an image.
    """
    if len(shape) == 3 and shape[0] in CHANNELS:  # noqa: PLR2004 - channels and two sides
        return np.ascontiguousarray(_draw_channels(shape[0], shape[1:], count, seed))
    if len(shape) == 3 and shape[2] in CHANNELS:  # noqa: PLR2004 - as above
        return np.ascontiguousarray(_draw_channels(shape[2], shape[:2], count, seed).transpose(0, 2, 3, 1))
    raise ValueError(f"an input of shape {list(shape)} is not an image: give --data")


def _draw_channels(channels: int, sides: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    drawn = draw(count, max(sides), seed)
    return drawn[:, np.arange(channels) % drawn.shape[1], : sides[0], : sides[1]]


def _draw_patches(generator: np.random.Generator, count: int, size: int, cells: int) -> np.ndarray:
    """Draw random colours on a grid of cells by cells, each image with its own contrast."""
    coarse = generator.standard_normal((count, 3, cells, cells), dtype=np.float32)
    coarse *= generator.uniform(0.1, 1.0, size=(count, 1, 1, 1)).astype(np.float32)
    places = np.arange(size) * cells // size
    return coarse[:, :, places[:, None], places[None, :]]
