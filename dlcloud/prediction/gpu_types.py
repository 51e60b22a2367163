"""Predict a job on GPU types from those on which it ran, by the data sheets of the GPUs.

A job is bound by memory, by matrix products, or by both in turn: its speed grows with the one, the other, or
a power of each. Which is unknown, so that all are weighed by what was measured.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import fmean

from dlcloud.model.instance import Accelerator
from dlcloud.prediction.predictor import Estimate, Measurement, estimate_from_logarithms, measured_estimate
from dlcloud.prediction.serving import GPUS

BANDWIDTHS = {
    "V100": 900,
    "T4": 320,
    "T4g": 320,
    "A10G": 600,
    "L4": 300,
    "L40S": 864,
    "RTX PRO Server 6000": 1597,
    **{name: gpu.bandwidth for name, gpu in GPUS.items()},
}
"""GB/s by data sheets, unverified."""
SHARES = tuple(share / 10 for share in range(11))
SCATTER = 0.35
"""How far a type is from its data sheet, as a logarithm.

Source: `tests/performance/serving.py`: llama-bench on T4, L40S and V100, from one and from two of them: the
median error on the others is 33 %, and 94 and 91 % are within the intervals.
"""
HALF = 1.645
"""Of a 90 % interval, in standard deviations."""


def has_sheet(gpu: Accelerator) -> bool:
    """Return whether a job can be predicted on such GPUs: whole ones with known data sheets."""
    return gpu.share == 1 and gpu.name in BANDWIDTHS and bool(gpu.tensor_tflops or gpu.fp32_tflops)


def predict_on_gpus(
    measurements: Sequence[Measurement], gpus: Mapping[str, Accelerator], names: Sequence[str]
) -> list[Estimate]:
    """Return the throughput on those types that have as many GPUs as a measured one.

    Args:
        measurements: On types with GPUs, one at least.
        gpus: The GPUs of each type that has some.
        names: The types to predict; of those without such GPUs nothing is returned.
    """
    sheets = {name: _sheet(gpu) for name, gpu in gpus.items()}
    counts = {gpus[one.instance_type].count for one in measurements}
    weights, levels = [], []
    for share in SHARES:
        rests = [log(m.throughput) - _speed(sheets[m.instance_type], share) for m in measurements]
        level = fmean(rests)
        levels.append(level)
        weights.append(exp(-sum((rest - level) ** 2 for rest in rests) / 2 / SCATTER**2))
    total, measured = sum(weights), {one.instance_type: one for one in measurements}
    estimates = []
    for name in names:
        if name in measured:
            estimates.append(measured_estimate(measured[name]))
        elif name in gpus and gpus[name].count in counts:
            all_of = [
                level + _speed(sheets[name], share) for share, level in zip(SHARES, levels, strict=True)
            ]
            center = sum(w * one for w, one in zip(weights, all_of, strict=True)) / total
            spread = sum(w * (one - center) ** 2 for w, one in zip(weights, all_of, strict=True)) / total
            half = HALF * sqrt(spread + SCATTER**2 * (1 + 1 / len(measurements)))
            estimates.append(estimate_from_logarithms(name, center, half))
    return estimates


def _sheet(gpu: Accelerator) -> tuple[float, float]:
    """Return the logarithms of bandwidth and TFLOPS of all GPUs."""
    tflops = gpu.tensor_tflops or gpu.fp32_tflops or 1.0
    return log(BANDWIDTHS[gpu.name] * gpu.count), log(tflops * gpu.count)


def _speed(sheet: tuple[float, float], share: float) -> float:
    return share * sheet[0] + (1 - share) * sheet[1]
