"""Roofline figures of PyTorch: what it reaches at best on a machine, and the work of what it runs.

Peaks are matrix products in a data type and a pass over memory; operations are counted by PyTorch's
FlopCounterMode, bytes by the sizes of tensors.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .roofline import ELEMENT_BYTES, Peak, Work, array_values, best_product, best_rate

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


SMALL = (
    "view",
    "reshape",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "detach",
    "expand",
    "slice",
    "select",
)
"""Operators that compute nothing and move nothing."""


class _Traffic(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not installed where types are checked
    """Sums the bytes of all tensors that operators make, and names the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - PyTorch's own signature
        outputs = function(*arguments, **(options or {}))
        if function.overloadpacket.__name__ not in SMALL:
            self.operators.add(function.overloadpacket)
            made = outputs if isinstance(outputs, tuple | list) else [outputs]
            self.bytes += sum(_bytes(tensor) for tensor in made if isinstance(tensor, torch.Tensor))
        return outputs


def count_work(run: Callable[[], object], items: int, weight_bytes: int = 0) -> Work:
    """Return the work of an item of a run, which is called once, without any compilation.

    Operations are two for each multiply-add of convolutions and products, forward and backward; operators
    that the counter does not know count as none and are named. Bytes: each tensor written once and read
    once, and `weight_bytes` read once.
    """
    counter, traffic = FlopCounterMode(display=False), _Traffic()
    with torch.compiler.set_stance("force_eager"), traffic, counter:
        run()
    uncounted = sorted({str(name) for name in traffic.operators if name not in counter.flop_registry})
    return Work(
        flop=counter.get_total_flops() / items,
        bytes=(2 * traffic.bytes + weight_bytes) / items,
        uncounted=tuple(name.removeprefix("aten.") for name in uncounted),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
