"""Two measurements side by side: how many times as well the second does, and what else differs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dlcloud.core.result import FASTER, NO_DIFFERENCE, SLOWER, UNDECIDED, Metric
from dlcloud.core.result_row import ResultRow

FEWEST_SAMPLES = 6
"""With fewer, the interval of a median is not of 95 %: 1 - 2**(1 - n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as well: above 1 is faster; `low` and `high` are None where no interval is known."""

    value: float
    low: float | None
    high: float | None
    verdict: str
    paired: bool = False
    """Measured in turns within one run, which is surer than two runs can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing measured on both sides."""

    first: ResultRow
    second: ResultRow
    ratio: Ratio

    @property
    def usd_ratio(self) -> Decimal | None:
        """Return how many times as much a million items cost on the second side, each on its own market."""
        ours = self.first.usd_per_million(self.first.run.market)
        theirs = self.second.usd_per_million(self.second.run.market)
        return None if not ours or theirs is None else theirs / ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same on both sides; empty where a side does not tell."""

    what: str
    first: str
    second: str


def pairs_of(first: Iterable[ResultRow], second: Iterable[ResultRow], *, free: frozenset[str]) -> list[Pair]:
    """Return what was measured on both sides, in the order of the first.

    Args:
        first: The lines of one side, at most one of each kind.
        second: Those of the other.
        free: In what the sides are meant to differ, of `type` and `setting`; in all else they must agree.
    """
    theirs = {_kind(line, free): line for line in second}
    matched = [(line, theirs.get(_kind(line, free))) for line in first]
    return [
        Pair(first=ours, second=other, ratio=ratio_of_lines(ours, other))
        for ours, other in matched
        if other is not None and ours.throughput is not None and other.throughput is not None
        if ours is not other and ours.throughput.unit == other.throughput.unit
    ]


def ratio_of_lines(first: ResultRow, second: ResultRow) -> Ratio:
    """Return the ratio of two lines: the one that their run measured in turns, else that of their medians."""
    paired = _paired(first, second)
    if paired is not None:
        return paired
    if first.throughput is None or second.throughput is None:
        raise ValueError("both lines must have a throughput")
    ratio = ratio_of(first.throughput, second.throughput)
    if first.rehearsal and second.rehearsal and first.run.instance_type != second.run.instance_type:
        # Both were this machine: whatever differs, it is not the types.
        return Ratio(value=ratio.value, low=ratio.low, high=ratio.high, verdict=UNDECIDED)
    return ratio


def ratio_of(first: Metric, second: Metric) -> Ratio:
    """Return second over first with its 95 % interval, from the intervals of two independent medians.

    The variances are recovered from the distances of the bounds, on the logarithmic scale, so that the ratio
    and its inverse have inverse intervals and uneven bounds stay uneven.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", section 2 (MOVER).
    """
    value = second.value / first.value if first.value else math.inf
    bounds = (first.low, first.high, second.low, second.high)
    positive = first.value > 0 and second.value > 0 and all(each is not None and each > 0 for each in bounds)
    if not positive:
        return Ratio(value=value, low=None, high=None, verdict=UNDECIDED)
    ours, theirs = _distances(first), _distances(second)
    low = value * math.exp(-math.hypot(theirs[0], ours[1]))
    high = value * math.exp(math.hypot(theirs[1], ours[0]))
    enough = min(first.samples, second.samples) >= FEWEST_SAMPLES
    return Ratio(value=value, low=low, high=high, verdict=judged(low, high) if enough else UNDECIDED)


def judged(low: float, high: float) -> str:
    """Return the verdict: a winner only where the interval excludes 1."""
    return FASTER if low > 1 else SLOWER if high < 1 else NO_DIFFERENCE


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, ignored: frozenset[str] = frozenset()
) -> list[Difference]:
    """Return in what two nested descriptions differ, by dotted names; lists by what only one side has."""
    ours, theirs = _flat(first), _flat(second)
    found = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        one, other = ours.get(name), theirs.get(name)
        if one != other and name not in ignored:
            found.append(_difference(name, one, other))
    return found


def _distances(metric: Metric) -> tuple[float, float]:
    """Return how far the bounds are from the value, below and above, as logarithms; never negative."""
    low, high = metric.low or metric.value, metric.high or metric.value
    return max(0.0, math.log(metric.value / low)), max(0.0, math.log(high / metric.value))


def _paired(first: ResultRow, second: ResultRow) -> Ratio | None:
    if first.run.run_id != second.run.run_id or first.result.case != second.result.case:
        return None
    told = second.comparison
    if told is not None and told.baseline == first.result.setting:
        return Ratio(value=told.ratio, low=told.low, high=told.high, verdict=told.verdict, paired=True)
    told = first.comparison
    if told is not None and told.baseline == second.result.setting and told.low > 0:
        words = {FASTER: SLOWER, SLOWER: FASTER}
        verdict = words.get(told.verdict, told.verdict)
        return Ratio(value=1 / told.ratio, low=1 / told.high, high=1 / told.low, verdict=verdict, paired=True)
    return None


def _kind(line: ResultRow, free: frozenset[str]) -> tuple[str, ...]:
    told = {
        "benchmark": line.run.workload,
        "case": line.result.case,
        "type": line.run.instance_type,
        "setting": line.result.setting,
    }
    return tuple(value for name, value in told.items() if name not in free)


def _flat(told: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in told.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _difference(name: str, first: Any, second: Any) -> Difference:  # noqa: ANN401  whatever JSON holds
    if isinstance(first, list) and isinstance(second, list):
        only_first = [str(each) for each in first if each not in second]
        only_second = [str(each) for each in second if each not in first]
        return Difference(what=name, first=_only(only_first), second=_only(only_second))
    return Difference(what=name, first=_word(first), second=_word(second))


def _only(names: Sequence[str]) -> str:
    return f"only here: {', '.join(names)}" if names else ""


def _word(value: object) -> str:
    return "" if value is None else str(value)
