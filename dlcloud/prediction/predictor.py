"""Predict a job's throughput on all types from measurements on a few.

The job resembles the reference jobs by weights: those of its description, if it has one, times the likelihood
of its measurements under each reference. Its logarithm of throughput is the weighted mean of the references,
a free level, the references' weighted covariance, and a deviation that is alike on alike types: a Gaussian
process, conditioned on the measurements. Scores of left-out jobs scale its intervals (conformal prediction).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log2, sqrt

from dlcloud.prediction.linear import factor, solve_lower
from dlcloud.prediction.measured_types import Reference, TypeTable
from dlcloud.prediction.similarity import DEVIATIONS, Traits, covariance

FREE_LEVEL = 25.0
"""Variance of a job's mean speed: as good as unknown."""
DEVIATION = 0.3
"""Scale of `DEVIATIONS` in one job."""
EXPERT_VARIANCE = 0.02
"""Of a reference around the job that it resembles."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What intervals are scaled by: on types that the table measured, and on those that it estimates.

    Source: `tests/performance/prediction.py --undescribed`: 90th percentile of |error| / standard deviation.
    """

    measured: float = 1.25
    estimated: float = 1.13


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is believed of a job: `weights` of the references, and its measurements."""

    table: TypeTable
    weights: tuple[float, ...]
    measurements: tuple[Measurement, ...] = ()

    @cached_property
    def observed(self) -> list[Traits]:
        return [self.table.rows[m.instance_type].traits for m in self.measurements]

    @cached_property
    def noises(self) -> list[float]:
        """The variance of each measurement beside its type's own speed in the model."""
        return [
            self.table.noise(m.instance_type, self.weights) ** 2 + (m.spread / 1.96) ** 2 + 1e-4
            for m in self.measurements
        ]

    def mean(self, name: str) -> float:
        return sum(w * s for w, s in zip(self.weights, self.table.shape(name), strict=True))

    def shared(self, one: str, other: str) -> float:
        """Return the covariance of two types in this job, the free level included."""
        rows = self.table.rows
        mine, theirs = self.departures(one), self.departures(other)
        spread = sum(w * a * b for w, a, b in zip(self.weights, mine, theirs, strict=True))
        deviation = DEVIATION * covariance(rows[one].traits, rows[other].traits, DEVIATIONS)
        return spread + deviation + FREE_LEVEL

    def departures(self, name: str) -> list[float]:
        mean = self.mean(name)
        return [shape - mean for shape in self.table.shape(name)]


def weights_of(references: Sequence[Reference], description: Reference | None) -> tuple[float, ...]:
    """Return how much a job resembles each reference, before any measurement; alike without a description."""
    if description is None:
        return tuple(1 / len(references) for _ in references)
    distances = [_distance(reference, description) for reference in references]
    nearest = min(distances)
    weights = [exp(-0.5 * (distance - nearest)) + 1e-3 for distance in distances]
    return tuple(weight / sum(weights) for weight in weights)


def _distance(one: Reference, other: Reference) -> float:
    kind = 2.5 * (one.is_generation - other.is_generation)
    size = 2.0 * log2(one.file_bytes / other.file_bytes)
    tokens = 0.7 * log2(one.tokens / other.tokens)
    return kind * kind + size * size + tokens * tokens


def learn(belief: Belief, measurements: Sequence[Measurement]) -> Belief:
    """Return the belief after measurements: references that contradict them weigh less."""
    updated = Belief(table=belief.table, weights=belief.weights, measurements=tuple(measurements))
    if len(measurements) < 2:  # noqa: PLR2004  one measurement is the level, which says nothing of the shape
        return updated
    matrix = [
        [
            DEVIATION * covariance(one, other, DEVIATIONS)
            + FREE_LEVEL
            + (i == j) * (updated.noises[i] + EXPERT_VARIANCE)
            for j, other in enumerate(updated.observed)
        ]
        for i, one in enumerate(updated.observed)
    ]
    lower = factor(matrix)
    shapes = [belief.table.shape(m.instance_type) for m in measurements]
    misfits = []
    for j in range(len(belief.weights)):
        rest = [log(m.throughput) - shape[j] for m, shape in zip(measurements, shapes, strict=True)]
        misfits.append(sum(x * x for x in solve_lower(lower, rest)))
    best = min(misfits)
    weights = [w * exp(-0.5 * (misfit - best)) for w, misfit in zip(belief.weights, misfits, strict=True)]
    return Belief(
        table=belief.table,
        weights=tuple(weight / sum(weights) for weight in weights),
        measurements=tuple(measurements),
    )


def predict(belief: Belief, names: Sequence[str], calibration: Calibration) -> list[Estimate]:
    """Return the throughput on each of these types; needs one measurement at least."""
    observed = [m.instance_type for m in belief.measurements]
    matrix = [
        [belief.shared(a, b) + (i == j) * belief.noises[i] for j, b in enumerate(observed)]
        for i, a in enumerate(observed)
    ]
    lower = factor(matrix)
    rest = solve_lower(lower, [log(m.throughput) - belief.mean(m.instance_type) for m in belief.measurements])
    measured = {m.instance_type: m for m in belief.measurements}
    estimates = []
    for name in names:
        if name in measured:
            estimates.append(_measured(measured[name]))
            continue
        gains = solve_lower(lower, [belief.shared(name, other) for other in observed])
        center = belief.mean(name) + sum(a * b for a, b in zip(gains, rest, strict=True))
        variance = max(belief.shared(name, name) - sum(a * a for a in gains), 0.0)
        deviation = sqrt(variance + belief.table.noise(name, belief.weights) ** 2)
        row = belief.table.rows[name]
        half = deviation * (calibration.measured if row.measured else calibration.estimated)
        estimates.append(
            Estimate(
                instance_type=name,
                throughput=exp(center),
                low=exp(center - half),
                high=exp(center + half),
            )
        )
    return estimates


def _measured(measurement: Measurement) -> Estimate:
    value = measurement.throughput
    return Estimate(
        instance_type=measurement.instance_type,
        throughput=value,
        low=value * (1 - measurement.spread),
        high=value * (1 + measurement.spread),
        measured=True,
    )
