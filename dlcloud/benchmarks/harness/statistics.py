"""How certain a measured figure is: medians, bootstrap intervals, verdicts, and where a warm-up ends.

Standard library only, so that the benchmarks and the launcher's reports compute alike.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from .schema import Verdict

CONFIDENCE = 0.95
"""Share of intervals that hold the true value."""

DRAWN_CONFIDENCE = 0.98
"""Confidence at which an interval is drawn so that it holds CONFIDENCE.

Sampling stops when the interval looks narrow, which favours intervals that are narrow by luck. Drawn at 98 %,
two equal settings are called different in 1 to 4 of 100 simulated tries whatever the noise; at 95 %, in 3 to
8.
"""

MINIMUM_PAIRS = 8
"""Fewest pairs that are resampled; with fewer, the interval spans all of them."""

LOOK_GROWTH = 1.5
"""How much the data grows between two looks at whether it is enough; fewer looks, less luck."""

WARM_UP_GROUP = 3
WARM_UP_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and the interval that holds the true one with the given confidence (0 to 1)."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def relative_width(self) -> float:
        """Return the width of the interval as a share of its value; infinite if the value is 0."""
        return (self.high - self.low) / abs(self.value) if self.value else math.inf


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie, interpolated between neighbours.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def bootstrap(
    values: Sequence[float],
    generator: random.Random,
    *,
    statistic: Callable[[Sequence[float]], float] = median,
    resamples: int = 1000,
) -> Interval:
    """Return a statistic of the values with its bootstrap percentile interval, expanded for small samples.

    The plain percentile interval of a median is too narrow for the five to twenty pairs a benchmark can
    afford: two equal settings would be called different in 8 to 16 of 100 tries. With fewer
    than MINIMUM_PAIRS values resampling knows too little: the interval then spans all values, and its
    confidence is that with which such a span holds the true median, 1 - 2**(1 - n).

    Raises:
        ValueError: There are no values.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13; the expansion:
    Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4.3.
    """
    value = statistic(values)
    if len(values) < MINIMUM_PAIRS:
        return Interval(
            value=value, low=min(values), high=max(values), confidence=1.0 - 2.0 ** (1 - len(values))
        )
    drawn = [statistic(generator.choices(values, k=len(values))) for _ in range(resamples)]
    tail = _expanded_tail(len(values))
    return Interval(
        value=value, low=percentile(drawn, tail), high=percentile(drawn, 1.0 - tail), confidence=CONFIDENCE
    )


def percentile_interval(values: Sequence[float], share: float) -> Interval:
    """Return a percentile of many values with the interval between the two values whose ranks enclose it.

    With too few values for the requested tail, the interval ends at the extreme value.

    Raises:
        ValueError: There are no values.

    Source: Conover 1999, "Practical Nonparametric Statistics", section 3.2, with the normal approximation.
    """
    ordered = sorted(values)
    spread = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2) * math.sqrt(len(ordered) * share * (1.0 - share))
    low = max(0, math.floor(len(ordered) * share - spread) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) * share + spread))
    value = percentile(ordered, share)
    return Interval(value=value, low=ordered[low], high=ordered[high], confidence=CONFIDENCE)


def _expanded_tail(count: int) -> float:
    """Return the share to cut from each end of the resampled statistics, below (1 - DRAWN_CONFIDENCE) / 2.

    The quantile of Student's t is Cornish and Fisher's expansion, good to 1 % from six degrees of freedom.

    Source: Abramowitz and Stegun 1964, "Handbook of Mathematical Functions", 26.7.5.
    """
    freedom = count - 1
    z = NormalDist().inv_cdf((1.0 + DRAWN_CONFIDENCE) / 2)
    student = (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
    return NormalDist().cdf(-math.sqrt(count / freedom) * student)


def judge(ratio: Interval) -> Verdict:
    """Name a winner only if the interval of the speed-up excludes 1."""
    if ratio.confidence < CONFIDENCE:
        return Verdict.UNDECIDED
    if ratio.low > 1.0:
        return Verdict.FASTER
    if ratio.high < 1.0:
        return Verdict.SLOWER
    return Verdict.NO_DIFFERENCE


def is_look_due(count: int, minimum: int) -> bool:
    """True if sampling may stop after `count` rounds, one of a few points from `minimum` (at least 1) on.

    After the first look they are even, so that each setting was as often before another as after it.
    """
    look = minimum
    while look < count:
        look = 2 * math.ceil(look * LOOK_GROWTH / 2)
    return look == count


def is_settled(values: Sequence[float]) -> bool:
    """True if a warm-up has ended: the last two medians of three steps agree within 5 %."""
    if len(values) < 2 * WARM_UP_GROUP:
        return False
    before = median(values[-2 * WARM_UP_GROUP : -WARM_UP_GROUP])
    after = median(values[-WARM_UP_GROUP:])
    return abs(after - before) <= WARM_UP_TOLERANCE * max(abs(before), abs(after))


def warm_up_length(values: Sequence[float]) -> int | None:
    """Return how many leading values belong to the warm-up, or None if it never ends.

    The values up to the first two agreeing medians are the warm-up, those two groups included except the
    last, which is already warm.
    """
    for length in range(2 * WARM_UP_GROUP, len(values) + 1):
        if is_settled(values[:length]):
            return length - WARM_UP_GROUP
    return None


def speed_ups(
    baseline: Sequence[float], candidate: Sequence[float], *, higher_is_better: bool
) -> list[float]:
    """Return the speed-up of each pair of values measured next to each other; above 1 is better."""
    pairs = zip(baseline, candidate, strict=True)
    if higher_is_better:
        return [ours / theirs for theirs, ours in pairs]
    return [theirs / ours for theirs, ours in pairs]
