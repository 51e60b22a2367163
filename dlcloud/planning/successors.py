"""The current instance types that are nearest to one that is not available."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

from dlcloud.model.instance import InstanceType, Price
from dlcloud.model.money import exact

SHOWN = 3
GPU_FAMILY = re.compile(r"(g|p)\d")
"""A name of an unknown type that has GPUs: the GPU types of AWS are P (large) and G."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """An instance type and its on-demand price, where one is known."""

    hardware: InstanceType
    price: Price | None

    @property
    def hourly_usd(self) -> Decimal | None:
        return self.price.hourly_usd if self.price else None


def successors(name: str, types: Sequence[KnownType]) -> list[KnownType]:
    """Return the nearest current types, the nearest first: by GPUs, then tensor TFLOPS and price.

    For a type without GPUs: by vCPUs and price. For an unknown name: those of its letter that are spelled
    most like it, or the cheapest with GPUs if it is of a family that has them.
    """
    original = next((candidate for candidate in types if candidate.hardware.name == name), None)
    current = {
        candidate.hardware.name: candidate for candidate in types if candidate.hardware.status == "current"
    }
    typos = get_close_matches(name, list(current), n=SHOWN, cutoff=0.9)
    if original is None and not typos and GPU_FAMILY.match(name):
        gpus = [candidate for candidate in current.values() if candidate.hardware.gpu is not None]
        return sorted(gpus, key=lambda candidate: candidate.hourly_usd or math.inf)[:SHOWN]
    if original is None:
        family = [other for other in current if other[:1] == name[:1]]
        return [current[match] for match in get_close_matches(name, family, n=SHOWN, cutoff=0.5)]
    has_gpu = original.hardware.gpu is not None
    alike = [candidate for candidate in current.values() if (candidate.hardware.gpu is not None) == has_gpu]
    return sorted(alike, key=lambda candidate: _distance(original, candidate))[:SHOWN]


def describe(candidate: KnownType) -> str:
    """Return a type in a few words: GPUs, tensor TFLOPS, price."""
    gpu = candidate.hardware.gpu
    processors = f"{candidate.hardware.vcpus} vCPUs"
    if gpu is not None:
        tensor = f", {gpu.count * gpu.tensor_tflops:g} tensor TFLOPS" if gpu.tensor_tflops else ""
        processors = f"{gpu.count}x {gpu.name}{tensor}"
    usd = f", {exact(candidate.hourly_usd)} USD/h" if candidate.hourly_usd is not None else ""
    return f"{candidate.hardware.name} ({processors}{usd})"


def _distance(original: KnownType, other: KnownType) -> tuple[float, float, float]:
    """Return how far two types are apart: GPU counts first, then power and a higher price, then the price.

    Each is in factors of two, so that half as fast is as far as twice as dear. Cheaper is never farther.
    """
    mine, its = original.hardware.gpu, other.hardware.gpu
    usd = _doublings(original.hourly_usd, other.hourly_usd)
    if mine is None or its is None:
        power, counts = _doublings(original.hardware.vcpus, other.hardware.vcpus), 0.0
    else:
        power = _doublings(mine.tensor_tflops or mine.fp32_tflops, its.tensor_tflops or its.fp32_tflops)
        counts = abs(_doublings(mine.count, its.count))
    return (counts, abs(power) + max(0.0, usd), usd)


def _doublings(mine: Decimal | float | None, its: Decimal | float | None) -> float:
    """Return how often the first must be doubled to give the second; 2 where one is not known."""
    if not mine or not its:
        return 2.0
    return math.log2(float(its) / float(mine))
