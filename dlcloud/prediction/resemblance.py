"""What a job has in common with the reference jobs: weights of theirs whose sum of shapes is expected of it.

The logarithm of a job's throughput on all types is a Gaussian process over jobs, too: over whether it
generates, the size of its model and the tokens that it reads together, with trends beyond the references
(kriging). Of a job without a description all points of a grid are possible; its measurements then say which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log2

from dlcloud.prediction.linear import factor, solve_lower, solve_upper
from dlcloud.prediction.measured_types import Reference

SIZES = tuple(2**power for power in range(26, 37))
"""Bytes of the models that a job without a description may have."""
TOKENS = (16, 128, 1024)
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """One thing that the job can be.

    Attributes:
        probability: That it is this one.
        is_generation: True if each token is computed alone.
        weights: Of the references' shapes; negative ones where a trend continues beyond them.
        variance: Scale of what types share in addition to these shapes.
    """

    probability: float
    is_generation: bool
    weights: tuple[float, ...]
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKernel:
    """How two jobs vary together: lengths in doublings, variances of trends and of what is a reference's own.

    Sizes far above `overhead_bytes` are alike: there a step takes as long as its bytes or operations, below
    it mostly as long as its threads wait for each other.

    Source: least error on the data that `tests/performance/prediction.py` reads.
    """

    overhead_bytes: float
    kind: float
    size: float
    tokens: float
    smooth: float
    size_trend: float
    tokens_trend: float
    same_kind: float
    size_trend_of_kind: float
    own: float

    def covariance(self, one: Reference, other: Reference) -> float:
        alike = one.is_generation == other.is_generation
        sizes = [self._size(reference.file_bytes) for reference in (one, other)]
        tokens = [log2(reference.tokens) - 8 for reference in (one, other)]
        distance = (
            (not alike) / self.kind**2
            + ((sizes[0] - sizes[1]) / self.size) ** 2
            + ((tokens[0] - tokens[1]) / self.tokens) ** 2
        )
        trends = (self.size_trend + alike * self.size_trend_of_kind) * sizes[0] * sizes[1]
        trends += self.tokens_trend * tokens[0] * tokens[1]
        return 1 + self.smooth * exp(-distance / 2) + trends + alike * self.same_kind

    def _size(self, file_bytes: float) -> float:
        return log2(file_bytes / GIB * (GIB + self.overhead_bytes) / (file_bytes + self.overhead_bytes))


DESCRIBED = JobKernel(
    overhead_bytes=1e9,
    kind=0.7,
    size=1.5,
    tokens=4.0,
    smooth=0.3,
    size_trend=0.0007,
    tokens_trend=0.009,
    same_kind=0.9,
    size_trend_of_kind=0.0067,
    own=0.06,
)
UNKNOWN = JobKernel(
    overhead_bytes=1e15,
    kind=0.23,
    size=2.0,
    tokens=108.0,
    smooth=0.3,
    size_trend=0.0022,
    tokens_trend=0.0003,
    same_kind=8.1,
    size_trend_of_kind=0.02,
    own=0.06,
)


def resemblances(references: Sequence[Reference], description: Reference | None) -> tuple[Resemblance, ...]:
    """Return what a job can be before any measurement: what is described, else a grid, alike probable."""
    kernel = UNKNOWN if description is None else DESCRIBED
    jobs = [description] if description is not None else _grid()
    lower = factor(
        [
            [kernel.covariance(a, b) + (i == j) * kernel.own for j, b in enumerate(references)]
            for i, a in enumerate(references)
        ]
    )
    return tuple(_resemblance(job, references, kernel, lower, 1 / len(jobs)) for job in jobs)


def _grid() -> list[Reference]:
    return [
        Reference(name="a job", is_generation=kind, file_bytes=size, tokens=tokens)
        for kind, size, tokens in product((False, True), SIZES, TOKENS)
    ]


def _resemblance(
    job: Reference,
    references: Sequence[Reference],
    kernel: JobKernel,
    lower: Sequence[Sequence[float]],
    probability: float,
) -> Resemblance:
    half = solve_lower(lower, [kernel.covariance(job, reference) for reference in references])
    return Resemblance(
        probability=probability,
        is_generation=job.is_generation,
        weights=tuple(solve_upper(lower, half)),
        variance=max(kernel.covariance(job, job) - sum(x * x for x in half), 0.0),
    )
