"""Count the operations of what PyTorch runs by its FlopCounterMode, and the bytes by the sizes of tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .roofline import Work

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
