"""Order, groups and winners of result rows, the Pareto front, and what would name a winner if none is named.

Tables, the answer and the page call it, so that they agree on who wins. `newest_of_cases` selects the rows
that compete, `best_of_case` names a winner only if the interval of its ratio to each other row excludes 1,
and `settle` says how many more samples would decide a tie and what measuring them costs. A winner that the
samples do not show must never be named.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from dlcloud.analysis.compare import FEWEST_SAMPLES, Ratio, ratio_of, ratio_of_rows, scale_ratio
from dlcloud.analysis.cost import ResultRow
from dlcloud.benchmarks.harness.schema import Measurement, Verdict
from dlcloud.model.instance import Market
from dlcloud.model.money import instance_usd, total_usd


def reason_of(verdict: str) -> str:
    """Return why a verdict names no winner: the words of tables, answers, comparisons and the page."""
    if verdict == Verdict.NO_DIFFERENCE:
        return "the interval of their ratio includes 1"
    return f"one has fewer than {FEWEST_SAMPLES} samples"


class By(StrEnum):
    """The figure that rows are ranked by: USD per million items, items per second, or median latency."""

    COST = "cost"
    THROUGHPUT = "throughput"
    LATENCY = "latency"


class Group(StrEnum):
    """What the rows of one table share."""

    CASE = "case"
    BENCHMARK = "benchmark"
    TYPE = "type"
    CLUSTER = "cluster"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The winner of a case with the reason; `row` is None where no winner can be named.

    `tied`: then the rows between which none can be, the best first.
    """

    case: str
    row: ResultRow | None
    reason: str
    tied: tuple[ResultRow, ...] = ()


def rank(rows: Iterable[ResultRow], by: By, market: Market) -> list[ResultRow]:
    """Return the rows, the best first; those without a figure last, equal ones in their order."""

    def key(row: ResultRow) -> float:
        figure = _figure(row, by, market)
        if figure is None:
            return math.inf
        return -float(figure) if by is By.THROUGHPUT else float(figure)

    return sorted(rows, key=key)


def group_rows(rows: Iterable[ResultRow], group: Group) -> list[list[ResultRow]]:
    """Return the rows by what they share, in the order in which each group comes first.

    A rehearsal and a figure of a real instance never share a table, nor do different units.
    """
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        unit = row.throughput.unit if row.throughput and group is not Group.RUN else ""
        groups.setdefault((row.rehearsal, *_shared(row, group), unit), []).append(row)
    return list(groups.values())


def natural_group(rows: Iterable[ResultRow]) -> Group:
    """Return the group that suits the rows: case if a benchmark ran on several types, else benchmark."""
    types: dict[tuple[bool, str], set[str]] = {}
    for row in rows:
        types.setdefault((row.rehearsal, row.run.workload), set()).add(row.run.instance_type)
    return Group.CASE if any(len(names) > 1 for names in types.values()) else Group.BENCHMARK


def newest_of_cases(rows: Iterable[ResultRow]) -> list[list[ResultRow]]:
    """Return the rows of each case: of each type and setting the newest; a rehearsal is its own case."""
    cases: dict[tuple[bool, str, str, str], dict[tuple[str, str], ResultRow]] = {}
    for row in sorted(rows, key=lambda row: row.run.started_at):
        if row.throughput is not None:
            key = (row.rehearsal, row.run.workload, row.result.case, row.throughput.unit)
            cases.setdefault(key, {})[row.run.instance_type, row.result.setting] = row
    return [[*newest.values()] for newest in cases.values()]


def pareto_front(rows: Sequence[ResultRow], market: Market) -> list[ResultRow]:
    """Return the rows that no other beats in both throughput and cost, the slowest first.

    Rows without a price or a throughput are left out. Several rehearsed types have no front.
    """
    if _are_several_rehearsed(rows):
        return []
    figures = [
        (row, (row.throughput.value, float(usd)))
        for row in rows
        if row.throughput is not None and (usd := row.usd_per_million(market)) is not None
    ]
    front = [(row, mine) for row, mine in figures if not any(_beats(theirs, mine) for _, theirs in figures)]
    return [row for row, _ in sorted(front, key=lambda pair: pair[1])]


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """True if (throughput, cost) `one` is at least as good in both, and not the same."""
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def _are_several_rehearsed(rows: Sequence[ResultRow]) -> bool:
    return any(row.rehearsal for row in rows) and len({row.run.instance_type for row in rows}) > 1


def best_of_case(rows: Sequence[ResultRow], by: By, market: Market) -> Best:
    """Name the best row of a case, only if the interval of its ratio to each other row excludes 1.

    The rows compete whatever their type and setting. All types rehearsed on one machine have the same
    speed, so several rehearsed types do not compete.
    """
    case = rows[0].result.case
    if _are_several_rehearsed(rows):
        return Best(case=case, row=None, reason="all types were rehearsed on this one machine")
    first, *others = rank(rows, by, market)
    if _figure(first, by, market) is None:
        return Best(case=case, row=None, reason=f"no {by} is known")
    ties = [(other, reason) for other in others if (reason := _tie(first, other, rows, by, market))]
    if ties:
        return Best(case=case, row=None, reason=ties[0][1], tied=(first, *(other for other, _ in ties)))
    reason = (
        "ahead of all others: the interval of each ratio excludes 1"
        if others
        else "nothing else was measured"
    )
    return Best(case=case, row=first, reason=reason)


def _tie(first: ResultRow, other: ResultRow, rows: Sequence[ResultRow], by: By, market: Market) -> str:
    """Return why the first of two rows cannot be called better than the other; empty if it can."""
    ours, theirs = _interval(first, by, market), _interval(other, by, market)
    if ours is None:
        return f"{_name(first, rows)} has no interval"
    if theirs is None:
        return f"{_name(other, rows)} has no interval"
    names = f"{_name(first, rows)} and {_name(other, rows)}"
    if by is not By.LATENCY and (undecided := _undecided(first, other)):
        return f"{undecided} between {names}: {reason_of(undecided)}"
    verdict = advantage(first, other, by, market).verdict
    if verdict == Verdict.FASTER:
        return ""
    verdict = verdict if verdict == Verdict.UNDECIDED else Verdict.NO_DIFFERENCE
    return f"{verdict} between {names}: {reason_of(verdict)}"


def advantage(first: ResultRow, other: ResultRow, by: By, market: Market) -> Ratio:
    """Return how many times as good one row is as another, with its interval; above 1, the first is better.

    The ratio of costs is that of the throughputs times that of the prices, which are certain.
    """
    if by is By.LATENCY:
        ours, theirs = metric_of(first, by), metric_of(other, by)
        if ours is None or theirs is None:
            raise ValueError("both rows must have a latency")
        return ratio_of(ours, theirs)
    ratio = ratio_of_rows(other, first)
    if by is By.THROUGHPUT or ratio.paired:
        return ratio
    prices = first.prices.hourly_usd(market), other.prices.hourly_usd(market)
    return scale_ratio(ratio, float((prices[1] or 0) / prices[0]) if prices[0] else 1.0)


def _undecided(first: ResultRow, other: ResultRow) -> str:
    """Return the verdict of the paired comparison of two settings of a run; empty if it has a winner.

    Samples of one run are compared in pairs, which is surer than two independent intervals are.
    """
    if first.run.run_id != other.run.run_id:
        return ""
    for candidate, baseline in ((first, other), (other, first)):
        for comparison in (candidate.comparison, candidate.overall):
            if comparison and comparison.baseline == baseline.result.setting and not comparison.is_decided:
                return comparison.verdict or Verdict.UNDECIDED
    return ""


def _name(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """Name a row among others: by its type, too, where they differ in it."""
    several = len({other.run.instance_type for other in rows}) > 1
    return f"{row.run.instance_type} {row.result.setting}" if several else row.result.setting


def _shared(row: ResultRow, group: Group) -> tuple[str, ...]:
    match group:
        case Group.CASE:
            return (row.run.workload, row.result.case)
        case Group.BENCHMARK:
            return (row.run.workload,)
        case Group.TYPE:
            return (row.run.instance_type,)
        case Group.CLUSTER:
            return (row.run.cluster_name,)
        case Group.RUN:
            return (row.run.run_id,)


def metric_of(row: ResultRow, by: By) -> Measurement | None:
    """Return the metric that a ranking rests on; that of the cost is the throughput."""
    return row.result.metrics.get("latency_p50") if by is By.LATENCY else row.throughput


def _figure(row: ResultRow, by: By, market: Market) -> Decimal | float | None:
    match by:
        case By.COST:
            return row.usd_per_million(market)
        case By.THROUGHPUT | By.LATENCY:
            metric = metric_of(row, by)
            return metric.value if metric else None


def _interval(row: ResultRow, by: By, market: Market) -> tuple[float, float] | None:
    """Return the interval of the ranked figure; None for a single sample, which has none."""
    if by is By.COST:
        usd = row.usd_interval(market)
        return None if usd is None else (float(usd[0]), float(usd[1]))
    metric = metric_of(row, by)
    return None if metric is None else metric.interval


FEWEST = 8
"""Samples from which an interval follows their spread; see `MINIMUM_PAIRS` of the benchmarks' statistics."""
MOST = 200
"""More samples than this are not worth measuring."""
MARGIN = 1.25
"""More samples than computed: the spread of a few is uncertain itself."""
SMALLEST_GAP = 0.005
"""Two figures that differ by less are the same for any decision."""
RANGE_OVER_DEVIATION = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704}
"""Expected range of n normal values in standard deviations. Source: Tippett 1925, Biometrika 17, d2."""
MEDIAN_HALF_WIDTH = 1.96 * 1.2533
"""Half of a median's 95 % interval in deviations, times sqrt(n). Source: asymptotic variance, pi / (2 n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What would name a winner.

    Attributes:
        rows: The rows between which none can be named, the best first.
        samples: Of each setting, to be measured in one run; None if no affordable number names a winner.
        gap: By how much the two best figures differ, as a fraction of the smaller.
        seconds: Instance time of measuring, boot and set-up included; None where it is not known.
        usd: Its cost, at the market of the rows' runs; None at an unknown price or time.
    """

    rows: tuple[ResultRow, ...]
    samples: int | None
    gap: float
    seconds: float | None = None
    usd: Decimal | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """The instance types to measure on again."""
        return tuple(dict.fromkeys(row.run.instance_type for row in self.rows))


def settle(best: Best, by: By, market: Market) -> Settling | None:
    """Return what would name the winner of a case; None if one is named, or if only AWS can name one."""
    if best.row is not None or len(best.tied) < 2 or best.tied[0].rehearsal:  # noqa: PLR2004  a pair
        return None
    first, *others = best.tied
    needs = [_samples(first, other, by, market) for other in others]
    gap = _gap(first, others[0], by, market)
    needed = [samples for samples in needs if samples is not None]
    if len(needed) < len(needs):
        return Settling(rows=best.tied, samples=None, gap=gap)
    runs = {row.run.run_id: row for row in best.tied}.values()
    seconds = [_seconds(row, max(needed), by) for row in runs]
    amounts = [amount for amount in seconds if amount is not None]
    return Settling(
        rows=best.tied,
        samples=max(needed),
        gap=gap,
        seconds=sum(amounts) if len(amounts) == len(seconds) else None,
        usd=total_usd(_usd(row, amount) for row, amount in zip(runs, seconds, strict=True)),
    )


def _samples(first: ResultRow, other: ResultRow, by: By, market: Market) -> int | None:
    """Return how many samples of both keep the interval of their ratio from 1; None if too many."""
    metrics = metric_of(first, by), metric_of(other, by)
    deviations = [_deviation(metric) for metric in metrics]
    more = 1 + max(metric.samples if metric else 0 for metric in metrics)
    gap = _gap(first, other, by, market)
    measured = [deviation for deviation in deviations if deviation is not None]
    if len(measured) < len(deviations):
        return max(FEWEST, more)
    if gap < SMALLEST_GAP:
        return None
    needed = MARGIN * (MEDIAN_HALF_WIDTH * math.hypot(*measured) / math.log1p(gap)) ** 2
    return max(FEWEST, more, math.ceil(needed)) if needed <= MOST else None


def _deviation(metric: Measurement | None) -> float | None:
    """Return the relative standard deviation of a metric's samples; None for a single sample."""
    if metric is None or metric.interval is None or metric.interval[0] <= 0:
        return None
    low, high = metric.interval
    width = math.log(high / low)
    if metric.samples in RANGE_OVER_DEVIATION:
        return width / RANGE_OVER_DEVIATION[metric.samples]
    return width / 2 * math.sqrt(metric.samples) / MEDIAN_HALF_WIDTH


def _gap(first: ResultRow, other: ResultRow, by: By, market: Market) -> float:
    """Return by how much two figures differ, as a fraction of the smaller; 0 if one is not known."""
    figures = sorted(float(_figure(row, by, market) or 0) for row in (first, other))
    return figures[1] / figures[0] - 1 if figures[0] > 0 else 0.0


def _seconds(row: ResultRow, samples: int, by: By) -> float | None:
    """Return the instance seconds of a row's run with this many samples of each setting."""
    metric = metric_of(row, by)
    cost = row.measured.cost
    if cost is None or metric is None or not metric.samples:
        return None
    return cost.seconds + cost.run_s * (samples / metric.samples - 1)


def _usd(row: ResultRow, seconds: float | None) -> Decimal | None:
    hourly_usd = row.prices.hourly_usd(row.run.market)
    return None if hourly_usd is None or seconds is None else instance_usd(hourly_usd, seconds)
