"""How a race ended: its lanes, a setting of a type each, with their samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean

from dlcloud.prediction.racing import ERROR, Stop, Verdict, half_width


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceCandidate:
    """A setting on an instance type.

    Attributes:
        label: Its name in the race.
        instance_type: Where it ran.
        setting: Which of the job's; empty if none reported yet.
        hourly_usd: Of all instances of the type.
        throughputs: Items per second, a sample each.
        stopped: Why it cannot be the cheapest; None if it can.
    """

    label: str
    instance_type: str
    setting: str
    hourly_usd: float
    throughputs: Sequence[float]
    stopped: Stop | None

    @property
    def throughput(self) -> float | None:
        """The geometric mean of the samples, which the race compares."""
        return exp(fmean(map(log, self.throughputs))) if self.throughputs else None

    def usd_per_million(self, error: float) -> tuple[float | None, float, float | None]:
        """Return USD per million items and an interval that holds at every look; None where unknown.

        Raises:
            ValueError: There are no samples.
        """
        rate = self.throughput
        if rate is None:
            raise ValueError(f"{self.label} has no samples")
        logs = [log(value) for value in self.throughputs]
        middle, center = self.hourly_usd * 1e6 / 3600 / rate, fmean(logs)
        half = half_width(len(logs), sum((value - center) ** 2 for value in logs), error)
        return (None, middle, None) if half == inf else (middle * exp(-half), middle, middle * exp(half))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """A race that has ended.

    Attributes:
        unit: Of throughput.
        lanes: Of the types that did not leave.
        kept: The labels of the lanes that can be the cheapest, the cheapest first.
        verdict: How it ended.
        reason: Of the verdict.
        left: The types that were not measured to the end, and why.
    """

    unit: str
    lanes: Sequence[RaceCandidate]
    kept: Sequence[str]
    verdict: Verdict
    reason: str
    left: Mapping[str, str]

    @property
    def error(self) -> float:
        """The probability that one lane's interval misses: all together miss with `ERROR` at most."""
        return ERROR / max(1, len(self.lanes))
