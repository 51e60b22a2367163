"""Two measurements side by side: the ratio of their throughputs, and in what else they differ."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from dlcloud.benchmarks.harness.schema import Measurement, Verdict
from dlcloud.results.result_row import ResultRow

FEWEST_SAMPLES = 6
"""The interval of a median of fewer samples covers less than 95 %: 1 - 2**(1 - n)."""

_OPPOSITE: dict[str, str] = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio above 1 is faster; `low` and `high` are None where no interval is known.

    `paired`: measured in turns within one run, which is surer than two runs can be.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str
    paired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing measured on both sides."""

    first: ResultRow
    second: ResultRow
    ratio: Ratio

    @property
    def usd_ratio(self) -> Decimal | None:
        """The cost of a million items on the second side over that on the first, each on its own market."""
        ours = self.first.usd_per_million(self.first.run.market)
        theirs = self.second.usd_per_million(self.second.run.market)
        return None if not ours or theirs is None else theirs / ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A property that is not the same on both sides; empty where a side lacks it."""

    name: str
    first: str
    second: str


def pairs_of(first: Iterable[ResultRow], second: Iterable[ResultRow], *, free: frozenset[str]) -> list[Pair]:
    """Return what was measured on both sides, in the order of the first.

    Args:
        first: The rows of one side, at most one of each kind.
        second: Those of the other.
        free: In what the sides are meant to differ, of `type` and `setting`; in all else they must agree.
    """
    theirs = {_kind(row, free): row for row in second}
    matched = [(row, theirs.get(_kind(row, free))) for row in first]
    return [
        Pair(first=ours, second=other, ratio=ratio_of_rows(ours, other))
        for ours, other in matched
        if other is not None and ours.throughput is not None and other.throughput is not None
        if ours is not other and ours.throughput.unit == other.throughput.unit
    ]


def ratio_of_rows(first: ResultRow, second: ResultRow) -> Ratio:
    """Return the ratio of two rows: that of their run's paired comparison, else that of their medians."""
    paired = _paired(first, second)
    if paired is not None:
        return paired
    if first.throughput is None or second.throughput is None:
        raise ValueError("both rows must have a throughput")
    ratio = ratio_of(first.throughput, second.throughput)
    if first.rehearsal and second.rehearsal and first.run.instance_type != second.run.instance_type:
        # Both were this machine: whatever differs, it is not the types.
        return Ratio(value=ratio.value, low=ratio.low, high=ratio.high, verdict=Verdict.UNDECIDED)
    return ratio


def ratio_of(first: Measurement, second: Measurement) -> Ratio:
    """Return second over first with its 95 % interval, from the intervals of two independent medians.

    The variances are recovered from the distances of the bounds, on the logarithmic scale, so that the ratio
    and its inverse have inverse intervals and uneven bounds stay uneven.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", section 2 (MOVER).
    """
    value = second.value / first.value if first.value else math.inf
    bounds = (first.low, first.high, second.low, second.high)
    if not all(bound is not None and bound > 0 for bound in (first.value, second.value, *bounds)):
        return Ratio(value=value, low=None, high=None, verdict=Verdict.UNDECIDED)
    ours, theirs = _distances(first), _distances(second)
    low = value * math.exp(-math.hypot(theirs[0], ours[1]))
    high = value * math.exp(math.hypot(theirs[1], ours[0]))
    enough = min(first.samples, second.samples) >= FEWEST_SAMPLES
    verdict = verdict_of(low, high) if enough else Verdict.UNDECIDED
    return Ratio(value=value, low=low, high=high, verdict=verdict)


def scale_ratio(ratio: Ratio, factor: float) -> Ratio:
    """Return a ratio times a certain factor, with the verdict of its interval; one undecided stays so."""
    if ratio.low is None or ratio.high is None:
        return replace(ratio, value=ratio.value * factor)
    low, high = ratio.low * factor, ratio.high * factor
    verdict = ratio.verdict if ratio.verdict == Verdict.UNDECIDED else verdict_of(low, high)
    return replace(ratio, value=ratio.value * factor, low=low, high=high, verdict=verdict)


def verdict_of(low: float, high: float) -> str:
    """Return the verdict of an interval: a winner only if it excludes 1."""
    return Verdict.FASTER if low > 1 else Verdict.SLOWER if high < 1 else Verdict.NO_DIFFERENCE


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, ignored: frozenset[str] = frozenset()
) -> list[Difference]:
    """Return in what two nested mappings differ, by dotted names; lists by what only one side has."""
    ours, theirs = _flat(first), _flat(second)
    return [
        _difference(name, ours.get(name), theirs.get(name))
        for name in {**ours, **theirs}
        if name not in ignored and ours.get(name) != theirs.get(name)
    ]


def _distances(metric: Measurement) -> tuple[float, float]:
    """Return how far the bounds are from the value, below and above, as logarithms; never negative."""
    low, high = metric.low or metric.value, metric.high or metric.value
    return max(0.0, math.log(metric.value / low)), max(0.0, math.log(high / metric.value))


def _paired(first: ResultRow, second: ResultRow) -> Ratio | None:
    if first.run.run_id != second.run.run_id or first.result.case != second.result.case:
        return None
    forward, backward = second.comparison, first.comparison
    if forward is not None and forward.baseline == first.result.setting:
        return Ratio(
            value=forward.ratio, low=forward.low, high=forward.high, verdict=forward.verdict, paired=True
        )
    if backward is not None and backward.baseline == second.result.setting and backward.low > 0:
        return Ratio(
            value=1 / backward.ratio,
            low=1 / backward.high,
            high=1 / backward.low,
            verdict=_OPPOSITE.get(backward.verdict, backward.verdict),
            paired=True,
        )
    return None


def _kind(row: ResultRow, free: frozenset[str]) -> tuple[str, ...]:
    properties = {
        "benchmark": row.run.workload,
        "case": row.result.case,
        "type": row.run.instance_type,
        "setting": row.result.setting,
    }
    return tuple(value for name, value in properties.items() if name not in free)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _difference(name: str, first: Any, second: Any) -> Difference:  # noqa: ANN401  any JSON value
    if isinstance(first, list) and isinstance(second, list):
        return Difference(name=name, first=_only_in(first, second), second=_only_in(second, first))
    return Difference(name=name, first=_text(first), second=_text(second))


def _only_in(values: Sequence[object], others: Sequence[object]) -> str:
    only = [str(value) for value in values if value not in others]
    return f"only here: {', '.join(only)}" if only else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)
