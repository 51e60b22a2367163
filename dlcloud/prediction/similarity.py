"""How alike two instance types are: the covariance of a job's logarithm of throughput between them."""

from dataclasses import dataclass
from functools import cached_property
from math import exp, log2

from dlcloud.model.instance import is_burstable
from dlcloud.prediction.processors import Processor


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The hardware of a type that its speed depends on; `cores` are physical ones."""

    name: str
    processor: Processor
    cores: int
    threads_per_core: int
    sockets: int

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_burstable(self) -> bool:
        """True for a type that is slowed down when its CPU credits are spent."""
        return is_burstable(self.name)

    @property
    def is_metal(self) -> bool:
        return ".metal" in self.name

    @cached_property
    def log_cores(self) -> float:
        return log2(self.cores)

    @cached_property
    def log_compute(self) -> float:
        return self.processor.log2_operations + log2(self.processor.ghz)

    @cached_property
    def log_core_bandwidth(self) -> float:
        return log2(self.processor.memory_gb_s / self.processor.cores)

    @cached_property
    def features(self) -> tuple[float, ...]:
        """Standardized: cores, compute, clock, bandwidth and cache of the type's share, and kind of type."""
        processor = self.processor
        share = self.cores / processor.cores
        bandwidth = processor.memory_gb_s * min(max(1.0, share), 1.5 * min(1.0, share))
        cache = processor.l3_mb * min(1.0, share)
        return (
            (self.log_cores - 3.6) / 2.0,
            (self.log_compute - 7.3) / 0.75,
            (log2(processor.ghz) - 1.65) / 0.23,
            (log2(bandwidth) - 6.0) / 1.9,
            (log2(cache) - 4.0) / 2.2,
            2.0 * self.is_burstable,
            float(self.is_metal),
            self.threads_per_core - 1.5,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The variances that two types share by what they have in common.

    Source: on the data that `tests/performance/prediction.py` reads, greatest marginal likelihood of LEVELS,
    least error by DEVIATIONS.
    """

    features: tuple[float, ...]
    size: float
    sheet: float
    sheet_size: float
    design: float
    same_size: float
    metal: float
    processor: float
    family: float
    arm: float
    sockets: float


LEVELS = Weights(
    features=(0.046, 0.046, 0.046, 0.046, 0.046, 0.05075, 0.046, 0.046),
    size=0.5,
    sheet=0.038,
    sheet_size=0.019,
    design=0.025,
    same_size=0.0072,
    metal=0.054,
    processor=0.012,
    family=0.005,
    arm=0.072,
    sockets=0.011,
)
"""Of one job's throughput from type to type."""
DEVIATIONS = Weights(
    features=(0.023, 0.0077, 0.069, 0.023, 0.069, 0.0254, 0.023, 0.0),
    size=0.68,
    sheet=0.0045,
    sheet_size=0.033,
    design=0.0285,
    same_size=0.0036,
    metal=0.0015,
    processor=0.0,
    family=0.0046,
    arm=0.179,
    sockets=0.022,
)
"""Of what a job does otherwise than the references that it resembles."""


def covariance(one: Traits, other: Traits, weights: Weights) -> float:
    """Return the variance that two types share."""
    apart = one.log_cores - other.log_cores
    size = exp(-0.125 * apart * apart)
    near = exp(-0.2222 * apart * apart)
    sheet = exp(
        -2.0 * (one.log_compute - other.log_compute) ** 2
        - 2.0 * (one.log_core_bandwidth - other.log_core_bandwidth) ** 2
    )
    total = sum(w * a * b for w, a, b in zip(weights.features, one.features, other.features, strict=True))
    total += weights.size * size + sheet * (weights.sheet + weights.sheet_size * near)
    if (one.processor.vendor == "arm") == (other.processor.vendor == "arm"):
        total += weights.arm * near
    if one.processor.design == other.processor.design:
        total += _of_one_design(one, other, weights, near)
    return total + weights.family * (one.family == other.family)


def _of_one_design(one: Traits, other: Traits, weights: Weights, near: float) -> float:
    total = weights.design
    total += weights.metal * near * (one.is_metal == other.is_metal)
    total += weights.sockets * near * (one.sockets == other.sockets)
    if one.processor.name == other.processor.name:
        alike = one.cores == other.cores and one.threads_per_core == other.threads_per_core
        total += weights.processor + weights.same_size * alike
    return total
