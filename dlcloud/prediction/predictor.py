"""Predict a job's throughput on all types from measurements on a few, and choose those few.

The logarithm of throughput is the shape that the job's resemblance to the reference jobs lets expect, a free
level, and a deviation that is alike on alike types: a Gaussian process, conditioned on the measurements.
Where it is not known what the job resembles, the estimate is the mean over all that it can be, by their
probability after the measurements. Scores of left-out jobs scale its intervals (conformal prediction).
The types to measure are those that tell most of all others, per USD (`choose_types`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log, sqrt
from operator import mul

from dlcloud.prediction.linear import factor, solve_lower
from dlcloud.prediction.measured_types import DEVIATIONS, TypeTable, covariance
from dlcloud.prediction.resemblance import Resemblance

FREE_LEVEL = 25.0
"""Variance of a job's mean speed: as good as unknown."""
LEAST_VARIANCE = 1e-4
"""Of a measurement."""
LEAST_CHANCE = 1e-2
"""Compared with the most probable; less is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The throughput of the job on one type, with the half width of its interval, relative."""

    instance_type: str
    throughput: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A predicted throughput with its 90 % interval; `measured` if that type itself was measured."""

    instance_type: str
    throughput: float
    low: float
    high: float
    measured: bool = False


MANY_CORES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What intervals are scaled by.

    `described`: a language model, on x86 and on Arm, where small models scatter most. `unsized`, on both, a
    job that most probably is a language model. Else `programs`: on types of up to 64 cores and of more.

    Source: `tests/performance/prediction.py`: 90th percentile of |error| / standard deviation of jobs that
    were left out; of `programs` those of `--programs` and, as they look like programs, of `--undescribed`.
    """

    described: tuple[float, float] = (0.5, 0.65)
    unsized: tuple[float, float] = (1.15, 1.45)
    programs: tuple[float, float] = (1.6, 1.9)

    def scale(self, belief: "Belief", name: str) -> float:
        traits = belief.table.rows[name].traits
        if not belief.is_language:
            return self.programs[traits.cores > MANY_CORES]
        return (self.described if belief.is_described else self.unsized)[traits.processor.vendor == "arm"]


@dataclass(kw_only=True, eq=False)
class Belief:
    """What is believed of a job: what it can be, and its measurements."""

    table: TypeTable
    resemblances: tuple[Resemblance, ...]
    measurements: tuple[Measurement, ...] = ()
    _shapes: dict[str, list[float]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def variance(self) -> float:
        return sum(one.probability * one.variance for one in self.resemblances)

    @cached_property
    def observed(self) -> list[str]:
        return [measurement.instance_type for measurement in self.measurements]

    @cached_property
    def is_language(self) -> bool:
        """True if the job most probably is a language model."""
        return 2 * sum(one.probability for one in self.resemblances if one.kind.is_language) > 1

    @cached_property
    def is_described(self) -> bool:
        return all(one.is_described for one in self.resemblances)

    def shapes(self, name: str) -> list[float]:
        """Return how far a type is expected above the mean type, for each thing that the job can be."""
        if name not in self._shapes:
            shape = self.table.shape(name)
            self._shapes[name] = [sum(map(mul, one.weights, shape)) for one in self.resemblances]
        return self._shapes[name]

    def departures(self, name: str) -> list[float]:
        """Return how far each thing that the job can be is from their mean, times sqrt(probability).

        The directions of mixtures follow.
        """
        chances, shapes = [one.probability for one in self.resemblances], self.shapes(name)
        mean = sum(map(mul, chances, shapes))
        departures = [sqrt(chance) * (shape - mean) for chance, shape in zip(chances, shapes, strict=True)]
        for one in self.resemblances:
            departures += [sqrt(one.probability) * part for part in self.scattered(name, one)]
        return departures

    def scattered(self, name: str, one: Resemblance) -> list[float]:
        """Return the directions in which a mixture's references depart from their mean on a type."""
        if not one.scatter:
            return []
        shape = self.table.shape(name)
        mean = sum(map(mul, one.weights, shape))
        return [
            sqrt(one.scatter * weight) * (part - mean)
            for weight, part in zip(one.weights, shape, strict=True)
            if weight
        ]

    def deviation(self, one: str, other: str) -> float:
        """Return the covariance of two types in addition to the shapes, for a variance of 1."""
        rows = self.table.rows
        return covariance(rows[one].traits, rows[other].traits, DEVIATIONS)

    def noise(self, name: str, one: Resemblance | None = None) -> float:
        """Return the variance of a type compared with types like it; of one possible job, or of all."""
        noises = self.table.rows[name].noises
        if one is not None:
            return noises[one.kind.noise] ** 2 + LEAST_VARIANCE
        mean = sum(other.probability * noises[other.kind.noise] for other in self.resemblances)
        return mean**2 + LEAST_VARIANCE


def learn(belief: Belief, measurements: Sequence[Measurement]) -> Belief:
    """Return the belief after measurements: what contradicts them is less probable."""
    updated = replace(belief, measurements=tuple(measurements), _shapes={})
    scores = []
    for k, one in enumerate(belief.resemblances):
        lower, rest = condition(updated, k)
        logarithm = log(one.probability) - sum(log(line[-1]) for line in lower)
        scores.append(logarithm - sum(x * x for x in rest) / 2)
    chances = [exp(score - max(scores)) for score in scores]
    kept = [
        replace(one, probability=chance)
        for one, chance in zip(belief.resemblances, chances, strict=True)
        if chance > LEAST_CHANCE
    ]
    total = sum(one.probability for one in kept)
    kept = [replace(one, probability=one.probability / total) for one in kept]
    return replace(updated, resemblances=tuple(kept), _shapes={})


def condition(belief: Belief, k: int) -> tuple[list[list[float]], list[float]]:
    """Return L of the measurements' covariance if the job is its k-th resemblance, and L^-1 errors."""
    one, observed = belief.resemblances[k], belief.observed
    spreads = [(measurement.spread / 1.96) ** 2 for measurement in belief.measurements]
    scattered = [belief.scattered(name, one) for name in observed]
    matrix = [
        [
            one.free_variance * belief.deviation(a, b)
            + sum(map(mul, scattered[i], scattered[j]))
            + FREE_LEVEL
            + (i == j) * (belief.noise(a, one) + spreads[i])
            for j, b in enumerate(observed)
        ]
        for i, a in enumerate(observed)
    ]
    lower = factor(matrix)
    errors = [log(m.throughput) - belief.shapes(m.instance_type)[k] for m in belief.measurements]
    return lower, solve_lower(lower, errors)


def predict(belief: Belief, names: Sequence[str], calibration: Calibration) -> list[Estimate]:
    """Return the throughput on each of these types; needs one measurement at least."""
    measured = {measurement.instance_type: measurement for measurement in belief.measurements}
    factors = [condition(belief, k) for k in range(len(belief.resemblances))]
    scattered = [[belief.scattered(name, one) for name in belief.observed] for one in belief.resemblances]
    estimates = []
    for name in names:
        if name in measured:
            estimates.append(measured_estimate(measured[name]))
            continue
        center, variance = _posterior(belief, name, factors, scattered)
        half = sqrt(variance) * calibration.scale(belief, name)
        estimates.append(estimate_from_logarithms(name, center, half))
    return estimates


def _posterior(
    belief: Belief,
    name: str,
    factors: Sequence[tuple[list[list[float]], list[float]]],
    scattered: Sequence[Sequence[Sequence[float]]],
) -> tuple[float, float]:
    """Return mean and variance of a type's logarithm of throughput, over all that the job can be."""
    shared = [belief.deviation(name, other) for other in belief.observed]
    own = belief.deviation(name, name)
    centers, variances = [], []
    for one, shape, (lower, rest), others in zip(
        belief.resemblances, belief.shapes(name), factors, scattered, strict=True
    ):
        mine = belief.scattered(name, one)
        alike = [
            one.free_variance * part + sum(map(mul, mine, other)) + FREE_LEVEL
            for part, other in zip(shared, others, strict=True)
        ]
        gains = solve_lower(lower, alike)
        centers.append(shape + sum(map(mul, gains, rest)))
        left = one.free_variance * own + sum(x * x for x in mine) + FREE_LEVEL
        left -= sum(gain * gain for gain in gains)
        variances.append(max(left, 0.0) + belief.noise(name, one))
    chances = [one.probability for one in belief.resemblances]
    center = sum(map(mul, chances, centers))
    spread = sum(p * (c - center) ** 2 for p, c in zip(chances, centers, strict=True))
    return center, spread + sum(map(mul, chances, variances))


def estimate_from_logarithms(name: str, center: float, half: float) -> Estimate:
    """Return the estimate of a type from its logarithm of throughput, and half the width of its interval."""
    low, high = exp(center - half), exp(center + half)
    return Estimate(instance_type=name, throughput=exp(center), low=low, high=high)


def measured_estimate(measurement: Measurement) -> Estimate:
    value = measurement.throughput
    return Estimate(
        instance_type=measurement.instance_type,
        throughput=value,
        low=value * (1 - measurement.spread),
        high=value * (1 + measurement.spread),
        measured=True,
    )


COST_POWER, PROGRAM_COST_POWER = 0.083, 0.03
"""How much a price counts: at 1, three small types are chosen, that tell little of large ones."""
MOST_TARGETS = 200
MOST_CANDIDATES = 200
_MEASURED_CORES = range(1, 65)
_ODD = ("t1", "f1", "f2", "dl1", "dl2q", "hpc6a", "hpc7a", "hpc7g")
"""Families that are throttled, or that few accounts can launch."""


def choose_types(
    belief: Belief, candidates: Mapping[str, float], targets: Sequence[str], count: int = 3
) -> list[str]:
    """Return the types that reduce the summed variance of the targets most, each by its price.

    Args:
        belief: Before any measurement.
        candidates: USD an hour of each type that can be measured.
        targets: The types of which something is to be learned.
        count: How many.
    """
    names = _thin([*_representatives(belief, candidates)], MOST_CANDIDATES)
    goals = _thin(sorted(targets), MOST_TARGETS)
    departures = {name: belief.departures(name) for name in {*names, *goals}}

    def covariance(one: str, other: str) -> float:
        spread: float = sum(map(mul, departures[one], departures[other]))
        return spread + belief.variance * belief.deviation(one, other) + FREE_LEVEL

    shared = {name: [covariance(name, goal) for goal in goals] for name in names}
    among = {name: {other: covariance(name, other) for other in names} for name in names}
    noises = {name: belief.noise(name) for name in names}
    power = COST_POWER if belief.is_language else PROGRAM_COST_POWER
    chosen: list[str] = []
    while names and len(chosen) < count:
        gains = {
            name: sum(c * c for c in shared[name])
            / (among[name][name] + noises[name])
            / candidates[name] ** power
            for name in names
        }
        best = max(names, key=lambda name: gains[name])
        chosen.append(best)
        names = [name for name in names if name != best]
        own, row = among[best][best] + noises[best], dict(among[best])
        for name in names:
            part = row[name] / own
            shared[name] = [c - part * b for c, b in zip(shared[name], shared[best], strict=True)]
            among[name] = {other: among[name][other] - part * row[other] for other in names}
    return chosen


def _representatives(belief: Belief, candidates: Mapping[str, float]) -> list[str]:
    """Return the cheapest measured type of each processor and size; no burstable one, no metal."""
    best: dict[tuple[str, int], str] = {}
    for name, usd in sorted(candidates.items(), key=lambda pair: pair[1]):
        row = belief.table.rows.get(name)
        if row is None or not row.measured or row.traits.is_burstable or row.traits.is_metal or usd <= 0:
            continue
        if row.traits.family in _ODD or row.traits.cores not in _MEASURED_CORES:
            continue
        best.setdefault((row.traits.processor.design, row.traits.cores), name)
    return sorted(best.values())


def _thin(names: Sequence[str], most: int) -> list[str]:
    step = max(1.0, len(names) / most)
    return [names[int(i * step)] for i in range(min(len(names), most))]
