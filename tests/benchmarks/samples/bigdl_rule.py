"""BigDL's local quantization in NumPy: the reference that BigDL's own int8 layers are compared with.

*Local* means that every small block has a scale of its own: a kernel (the weights of one output) before
inference, a window (the inputs of one output) at run time. The blocks are multiplied as integers, and the
scales of its two blocks bring each sum back to fp32.

The weights are first quantized by the article's formula, to bytes of -127 to 127. BigDL's native code
computes with narrower values: weights of -64 to 64, so that the sum of two products fits into 16 bits, and
windows of 0 to 127 between their smallest and largest value; the smallest comes back with the kernel's sum.

Windows are laid out as (row, column, channel). BigDL rounds eight neighbours at once, to even. It truncates
values that do not fill an aligned eight, and the zeros of the padding. With channels in multiples of eight
all values are rounded; an image's three channels cost up to a step of 1/127.

Source: AWS Japan Blog 2018, "Using low precision and quantization with BigDL on C5", the formula; Apache
BigDL-core's BigQuant (read, not copied) and the outputs of BigDL 2.4.0, which the tests compare, the rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

BYTE = 127
"""Largest byte of the article's formula."""

WEIGHT, DATA = np.float32(64), np.float32(127)
"""What the largest weight of a kernel, and the range of a window, become in the multiplication."""

LANES = 8
"""Values that are rounded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Quantized blocks, one a row: of whole numbers; value * ratio + smallest is about the original.

    `values` is (blocks, length) float64, so that products are summed exactly and quickly; `ratio` and
    `smallest` are (blocks,) float32.
    """

    values: np.ndarray
    ratio: np.ndarray
    smallest: np.ndarray


def to_bytes(kernels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the article's `round(value / max(|max|, |min|) * 127)` per row, and each row's divisor.

    Args:
        kernels: (outputs, inputs) float32.
    """
    largest = np.abs(kernels).max(axis=1, keepdims=True)
    scaled = np.divide(kernels.astype(np.float64), largest, where=largest > 0, out=np.zeros(kernels.shape))
    return np.floor(scaled * BYTE + 0.5), largest


def quantize_kernels(weight: np.ndarray) -> Blocks:
    """Quantize kernels, (outputs, inputs) float32, by way of the bytes that BigDL keeps them in."""
    kernel_bytes, largest = to_bytes(weight)
    restored = (kernel_bytes / BYTE * largest).astype(np.float32)
    largest = np.abs(restored).max(axis=1, keepdims=True)
    scale = np.divide(WEIGHT, largest, where=largest > 0, out=np.zeros_like(largest))
    values = _round_half_away(restored * scale).astype(np.float64)
    ratio = np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))
    return Blocks(values=values, ratio=ratio[:, 0], smallest=np.zeros(len(weight), np.float32))


def linear(source: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute BigDL's int8 Linear: (n, inputs) by (outputs, inputs) to (n, outputs), all float32."""
    scale, ratio, smallest = _measure_ranges(source)
    rows = Blocks(
        values=_round_half_away((source - smallest) * scale).astype(np.float64),
        ratio=ratio[:, 0],
        smallest=smallest[:, 0],
    )
    return _multiply(rows, quantize_kernels(weight), weight, bias)


def convolution(
    source: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, stride: int = 1, pad: int = 0
) -> np.ndarray:
    """Compute BigDL's int8 SpatialConvolution.

    Args:
        source: (n, channels, height, width) float32.
        weight: (outputs, channels, kernel, kernel) float32.
        bias: (outputs,) float32.
        stride: Of the windows.
        pad: Zeros around the source.

    Returns:
        (n, outputs, ...) float32.
    """
    outputs, _, kernel, _ = weight.shape
    padded = np.pad(source, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
    count, _, height, width = windows.shape[:4]
    rows = windows.transpose(0, 2, 3, 4, 5, 1).reshape(count, height * width, -1)
    blocks = _quantize_windows(rows, _locate_rounded(source.shape, kernel, stride, pad))
    flat = weight.transpose(0, 2, 3, 1).reshape(outputs, -1)
    product = _multiply(blocks, quantize_kernels(flat), weight.reshape(outputs, -1), bias)
    return product.reshape(count, height, width, outputs).transpose(0, 3, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Of every window's places, (windows, length) bool, those inside the image and those that are rounded."""

    inside: np.ndarray
    rounded: np.ndarray


def _quantize_windows(rows: np.ndarray, places: _Places) -> Blocks:
    """Quantize windows, (n, windows, length) float32."""
    scale, ratio, smallest = _measure_ranges(rows)
    zero = -smallest * scale
    # Multiplied and added in one instruction, with one rounding to float32.
    scaled = (rows.astype(np.float64) * scale + zero).astype(np.float32)
    inner = np.where(places.rounded, np.rint(scaled), np.trunc(scaled))
    values = np.where(places.inside, inner, np.trunc(zero))
    length = rows.shape[-1]
    return Blocks(
        values=values.reshape(-1, length).astype(np.float64),
        ratio=ratio.reshape(-1),
        smallest=smallest.reshape(-1),
    )


def _locate_rounded(shape: tuple[int, ...], kernel: int, stride: int, pad: int) -> _Places:
    """Return which places of each window are rounded: whole aligned eights of values side by side in memory.

    Side by side are a row of the window in all channels, if the window ends before the image's last column,
    else the channels of one pixel.
    """
    _, channels, height, width = shape
    tops = range(-pad, height + pad - kernel + 1, stride)
    lefts = range(-pad, width + pad - kernel + 1, stride)
    inside = np.zeros((len(tops), len(lefts), kernel, kernel * channels), dtype=bool)
    rounded = np.zeros_like(inside)
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            for y in range(max(0, -top), min(kernel, height - top)):
                for start, end in _list_runs(left, width, kernel, channels):
                    inside[row, column, y, start:end] = True
                    offset = y * kernel * channels
                    first, last = -(-(offset + start) // LANES) * LANES, (offset + end) // LANES * LANES
                    rounded[row, column, y, first - offset : max(first, last) - offset] = True
    windows = len(tops) * len(lefts)
    return _Places(inside=inside.reshape(windows, -1), rounded=rounded.reshape(windows, -1))


def _list_runs(left: int, width: int, kernel: int, channels: int) -> list[tuple[int, int]]:
    if left >= 0 and left + kernel < width:
        return [(0, kernel * channels)]
    pixels = range(max(0, -left), min(kernel, width - left))
    return [(pixel * channels, (pixel + 1) * channels) for pixel in pixels]


def _measure_ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scale, ratio and smallest value of each row, the last axis kept; an even row has the scale 0."""
    smallest, largest = rows.min(axis=-1, keepdims=True), rows.max(axis=-1, keepdims=True)
    width = largest - smallest
    scale = np.divide(DATA, width, where=width > 0, out=np.zeros_like(width))
    ratio = np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))
    return scale, ratio, smallest


def _multiply(data: Blocks, kernels: Blocks, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Multiply the blocks as integers and bring the sums back to float32: (data, kernels)."""
    sums = data.values @ kernels.values.T  # below 2**53, so float64 is as exact as int32
    ratio = (kernels.ratio * data.ratio[:, None]).astype(np.float64)
    # In the order of the weights in memory, one after the other, as BigDL does.
    totals = np.cumsum(weight, axis=1, dtype=np.float32)[:, -1]
    offset = (totals.astype(np.float64) * data.smallest[:, None] + bias).astype(np.float32)
    return (ratio * sums + offset).astype(np.float32)


def _round_half_away(values: np.ndarray) -> np.ndarray:
    """Round halves away from zero, as C does; NumPy rounds them to even."""
    return np.copysign(np.floor(np.abs(values) + np.float32(0.5)), values)
