"""How many more samples would name a winner of two measurements, and what measuring them costs."""

import math
from dataclasses import dataclass
from decimal import Decimal

from dlcloud.benchmarks.harness.schema import Measurement
from dlcloud.model.instance import Market
from dlcloud.model.money import instance_usd, total_usd
from dlcloud.results.ranking import Best, By, metric_of
from dlcloud.results.result_row import ResultRow

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
    figures = sorted(_figure(row, by, market) for row in (first, other))
    return figures[1] / figures[0] - 1 if figures[0] > 0 else 0.0


def _figure(row: ResultRow, by: By, market: Market) -> float:
    if by is By.COST:
        return float(row.usd_per_million(market) or 0)
    metric = metric_of(row, by)
    return metric.value if metric else 0.0


def _seconds(row: ResultRow, samples: int, by: By) -> float | None:
    """Return the instance seconds of a row's run with so many samples of each setting."""
    metric = metric_of(row, by)
    cost = row.measured.cost
    if cost is None or metric is None or not metric.samples:
        return None
    return cost.seconds + cost.run_s * (samples / metric.samples - 1)


def _usd(row: ResultRow, seconds: float | None) -> Decimal | None:
    hourly_usd = row.prices.hourly_usd(row.run.market)
    return None if hourly_usd is None or seconds is None else instance_usd(hourly_usd, seconds)
