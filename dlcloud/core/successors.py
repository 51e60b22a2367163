"""Which current instance types are nearest to one that cannot be had."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

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
    """Return the nearest current types, the nearest first: by GPUs, then tensor TFLOPS and price together.

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
    usd = f", {each.hourly_usd.normalize():f} USD/h" if each.hourly_usd is not None else ""
    return f"{each.hardware.name} ({what}{usd})"


def _distance(wanted: KnownType, other: KnownType) -> tuple[float, float]:
    """Return how far two types are apart: GPU counts first, then the rest in factors of two, added up."""
    mine, its = wanted.hardware.gpu, other.hardware.gpu
    price = _factor(wanted.hourly_usd, other.hourly_usd)
    if mine is None or its is None:
        return (0.0, _factor(wanted.hardware.vcpus, other.hardware.vcpus) + price)
    counts = _factor(mine.count, its.count)
    return (counts, _factor(mine.tensor_tflops, its.tensor_tflops) + price)


def _factor(mine: Decimal | float | None, its: Decimal | float | None) -> float:
    """Return the distance of two positive numbers in factors of two; 2 where one is unknown."""
    if not mine or not its:
        return 2.0
    return abs(math.log2(float(its) / float(mine)))
