"""Measure what PyTorch reaches on a machine: matrix products in a data type, and a pass over memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .roofline import ELEMENT_BYTES, Peak, array_values, best_product, best_rate

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}
WIDTH = 32
"""Width of the images of which a convolution by 1x1 is a matrix multiplication."""


def measure_peak(dtype: str, *, device: str, seconds: float) -> Peak:
    """Return the peak in a data type (a key of DTYPES) on `cpu` or `cuda`, in about twice `seconds`.

    The better of a product of matrices and of a convolution by 1x1, which other kernels compute. What holds
    for the process (threads, TF32) holds here.
    """
    forms = [_product] if dtype == "int8" else [_product, _convolution]
    with torch.no_grad():
        rates = [
            best_product(partial(form, dtype=dtype, device=device), seconds / len(forms)) for form in forms
        ]
        bandwidth = _measure_bandwidth(device, seconds / 2)
    return Peak(dtype=dtype, flop_per_s=max(rates), bytes_per_s=bandwidth)


def _product(size: int, dtype: str, device: str) -> Callable[[], object]:
    left, right = _draw((size, size), dtype, device), _draw((size, size), dtype, device)
    multiply: Any = torch._int_mm if dtype == "int8" else torch.mm  # noqa: SLF001 - PyTorch's only int8 product
    return _wait_for(lambda: multiply(left, right), device)


def _convolution(size: int, dtype: str, device: str) -> Callable[[], object]:
    images = _draw((1, size, WIDTH, size // WIDTH), dtype, device).contiguous(
        memory_format=torch.channels_last
    )
    weights = _draw((size, size, 1, 1), dtype, device)
    return _wait_for(lambda: torch.nn.functional.conv2d(images, weights), device)


def _draw(shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    # Values of a random start: a product of zeros takes less power, and GPUs then run faster.
    values = torch.randint(-64, 64, shape, device=device, dtype=torch.int8)
    return values if dtype == "int8" else (values / 64).to(DTYPES[dtype])


def _measure_bandwidth(device: str, seconds: float) -> float:
    """Return the bytes a second of `a = b + 3 c`: two arrays read, one written."""
    first, second = torch.ones(array_values(), device=device), torch.ones(array_values(), device=device)
    target = torch.empty_like(first)
    run = _wait_for(lambda: torch.add(first, second, alpha=3.0, out=target), device)
    return best_rate(run, 3 * ELEMENT_BYTES["fp32"] * array_values(), seconds)


def _wait_for(run: Callable[[], object], device: str) -> Callable[[], object]:
    if device != "cuda":
        return run

    def run_to_end() -> None:
        run()
        torch.cuda.synchronize()

    return run_to_end
