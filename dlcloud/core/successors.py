"""Which current instance types are nearest to one that cannot be had."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

from dlcloud.core.cost import exact
from dlcloud.core.instance import InstanceType, Price

SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """An instance type and its on-demand price, where one is known."""

    hardware: InstanceType
    price: Price | None

    @property
    def hourly_usd(self) -> Decimal | None:
        """Return the price."""
        return self.price.hourly_usd if self.price else None


def successors(name: str, known: Iterable[KnownType]) -> list[KnownType]:
    """Return the nearest current types, the nearest first: by GPUs, then tensor TFLOPS and price.

    For a type without GPUs: by vCPUs and price. For a name that nobody knows: those spelled most like it.
    """
    every = list(known)
    wanted = next((each for each in every if each.hardware.name == name), None)
    current = [each for each in every if each.hardware.status == "current"]
    if wanted is None:
        named = {each.hardware.name: each for each in current}
        return [named[match] for match in get_close_matches(name, list(named), n=SHOWN, cutoff=0.5)]
    alike = [each for each in current if (each.hardware.gpu is None) == (wanted.hardware.gpu is None)]
    return sorted(alike, key=lambda each: _distance(wanted, each))[:SHOWN]


def describe(each: KnownType) -> str:
    """Return a type in a few words: GPUs, tensor TFLOPS, price."""
    gpu = each.hardware.gpu
    what = f"{each.hardware.vcpus} vCPUs"
    if gpu is not None:
        tensor = f", {gpu.count * gpu.tensor_tflops:g} tensor TFLOPS" if gpu.tensor_tflops else ""
        what = f"{gpu.count}x {gpu.name}{tensor}"
    usd = f", {exact(each.hourly_usd)} USD/h" if each.hourly_usd is not None else ""
    return f"{each.hardware.name} ({what}{usd})"


def _distance(wanted: KnownType, other: KnownType) -> tuple[float, float, float]:
    """Return how far two types are apart: GPU counts first, then power and a higher price, then the price.

    Each is in factors of two, so that half as fast is as far as twice as dear. Cheaper is never farther.
    """
    mine, its = wanted.hardware.gpu, other.hardware.gpu
    usd = _doublings(wanted.hourly_usd, other.hourly_usd)
    if mine is None or its is None:
        power, counts = _doublings(wanted.hardware.vcpus, other.hardware.vcpus), 0.0
    else:
        power = _doublings(mine.tensor_tflops or mine.fp32_tflops, its.tensor_tflops or its.fp32_tflops)
        counts = abs(_doublings(mine.count, its.count))
    return (counts, abs(power) + max(0.0, usd), usd)


def _doublings(mine: Decimal | float | None, its: Decimal | float | None) -> float:
    """Return how often the first must be doubled to give the second; 2 where one is not known."""
    if not mine or not its:
        return 2.0
    return math.log2(float(its) / float(mine))
