"""Predictions with prices: what a million items cost on each type, and which jobs can be predicted at all."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from dlcloud.analysis.cost import ResultRow, usd_per_million
from dlcloud.model.instance import Accelerator, Market
from dlcloud.prediction.gpu_types import predict_on_gpus
from dlcloud.prediction.measured_types import Kind, Reference, TypeTable
from dlcloud.prediction.predictor import (
    Belief,
    Calibration,
    Estimate,
    Measurement,
    learn,
    predict,
)
from dlcloud.prediction.resemblance import describe_by_facts, resemblances
from dlcloud.prediction.rules import first_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOffer:
    """The estimate on one type with its prices of an hour; `listed` if the table measured that type.

    `is_burstable`: its speed lasts only as long as its CPU credits, so that it is never named.
    """

    estimate: Estimate
    listed: bool
    is_burstable: bool = False
    hourly_usd: Mapping[Market, Decimal]

    def usd_per_million(self, market: Market) -> tuple[Decimal, Decimal, Decimal] | None:
        """Return low, middle and high USD of a million items; None without a price."""
        price = self.hourly_usd.get(market)
        if price is None:
            return None
        one = self.estimate
        low, middle, high = (usd_per_million(price, rate) for rate in (one.high, one.throughput, one.low))
        return None if low is None or middle is None or high is None else (low, middle, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedJob:
    """One job, the cheapest type first.

    Attributes:
        refused: Why nothing is predicted; empty if it is.
        resembles: The reference jobs or rules that it resembles most, with their probabilities.
        by_rule: The first choice by the mean of these predictions and PassMark per USD, where few types were
            measured; else empty.
    """

    workload: str
    case: str
    setting: str
    unit: str
    offers: tuple[PredictedOffer, ...] = ()
    refused: str = ""
    resembles: tuple[tuple[str, float], ...] = ()
    by_rule: str = ""


NO_GPUS: Mapping[str, Accelerator] = MappingProxyType({})


def predict_jobs(
    rows: Sequence[ResultRow],
    table: TypeTable,
    prices: Mapping[str, Mapping[Market, Decimal]],
    market: Market,
    description: Reference | None = None,
    gpus: Mapping[str, Accelerator] = NO_GPUS,
) -> list[PredictedJob]:
    """Return what each job of these rows would do on all types that have a price.

    `description` is of all these jobs; without one facts and unit of the results describe theirs. Of types
    with GPUs those in `gpus` are predicted, from measured ones among them.
    """
    jobs: dict[tuple[str, str, str, str], list[ResultRow]] = {}
    for row in rows:
        if row.throughput is not None and row.throughput.value > 0:
            key = (row.run.workload, row.result.case, row.result.setting, row.throughput.unit)
            jobs.setdefault(key, []).append(row)
    predicted = []
    for key, mine in sorted(jobs.items()):
        stated = description or describe_by_facts(mine[0].result.facts, mine[0].items)
        belief = Belief(table=table, resemblances=resemblances(table.references, stated))
        predicted.append(_predict_job(key, mine, belief, prices, market, gpus))
    return predicted


MOST_RACED = 24
"""Candidates that a prediction leaves: in each a machine is launched.

Source: `tests/performance/prediction.py`: of 16 the best is at most 10 % dearer than the cheapest of all in
88 % of the described jobs, of 24 in 94 %.
"""


def candidates_of(jobs: Sequence[PredictedJob], market: Market, most: int = MOST_RACED) -> tuple[str, ...]:
    """Return the types that can be the cheapest by their intervals, the cheapest first.

    The one that a simple rule names is among the first. Burstable types are none. The settings of one case
    compete; of several cases each names its own.
    """
    best: dict[str, float] = {}
    for case in {(job.workload, job.case, job.unit) for job in jobs}:
        rows = [
            (offer.estimate.instance_type, figures)
            for job in jobs
            if (job.workload, job.case, job.unit) == case
            for offer in job.offers
            if not offer.is_burstable and (figures := offer.usd_per_million(market)) is not None
        ]
        ceiling = min((high for _, (_, _, high) in rows), default=Decimal(0))
        cheapest = min((middle for _, (_, middle, _) in rows), default=Decimal(1))
        by_rule = {job.by_rule for job in jobs if (job.workload, job.case, job.unit) == case}
        for name, (low, middle, _) in rows:
            if name in by_rule:
                best[name] = min(best.get(name, 1.0), 1.0)
            elif low <= ceiling:
                best[name] = min(best.get(name, float("inf")), float(middle / cheapest))
    return tuple(sorted(best, key=lambda name: best[name])[:most])


def _predict_job(
    key: tuple[str, str, str, str],
    rows: Sequence[ResultRow],
    belief: Belief,
    prices: Mapping[str, Mapping[Market, Decimal]],
    market: Market,
    gpus: Mapping[str, Accelerator],
) -> PredictedJob:
    table = belief.table
    workload, case, setting, unit = key
    measurements, refused = _measurements(rows, {*table.rows, *gpus})
    on_gpus = [one for name, one in measurements.items() if name in gpus]
    on_cpus = [one for name, one in measurements.items() if name not in gpus]
    offers: list[PredictedOffer] = []
    by_rule = ""
    if on_gpus:
        offers = [
            PredictedOffer(
                estimate=estimate, listed=estimate.measured, hourly_usd=prices[estimate.instance_type]
            )
            for estimate in predict_on_gpus(on_gpus, gpus, list(prices))
        ]
    if on_cpus:
        names = [name for name in prices if name in table.rows]
        belief = learn(belief, on_cpus)
        offers += [
            PredictedOffer(
                estimate=estimate,
                listed=table.rows[estimate.instance_type].measured,
                is_burstable=table.rows[estimate.instance_type].traits.is_burstable,
                hourly_usd=prices[estimate.instance_type],
            )
            for estimate in predict(belief, names, Calibration())
        ]
        if not belief.is_language:
            hourly = {
                offer.estimate.instance_type: float(offer.hourly_usd[market])
                for offer in offers
                if market in offer.hourly_usd and not offer.is_burstable
            }
            hourly = {name: usd for name, usd in hourly.items() if name in table.rows}
            predicted = {one.estimate.instance_type: one.estimate.throughput for one in offers}
            by_rule = first_choice(table, hourly, predicted, len(on_cpus))
    offers.sort(key=lambda offer: _middle(offer, market))
    return PredictedJob(
        workload=workload,
        case=case,
        setting=setting,
        unit=unit,
        offers=tuple(offers),
        refused=refused,
        resembles=_resembled(belief) if on_cpus else (),
        by_rule=by_rule,
    )


MOST_RESEMBLED = 3


def _resembled(belief: Belief) -> tuple[tuple[str, float], ...]:
    """Return what the job resembles most, by probability: references, rules, or groups of references."""
    chances: dict[str, float] = {}
    for one in belief.resemblances:
        if one.kind.is_language:
            name = "a language model that generates" if one.kind is Kind.GENERATION else "a language model"
        elif one.scatter:
            name = "programs on one thread" if one.kind is Kind.ONE_THREAD else "programs on all threads"
        else:
            name = belief.table.references[max(range(len(one.weights)), key=one.weights.__getitem__)].name
        chances[name] = chances.get(name, 0.0) + one.probability
    ranked = sorted(chances.items(), key=lambda pair: -pair[1])
    return tuple(ranked[:MOST_RESEMBLED])


def _middle(offer: PredictedOffer, market: Market) -> Decimal:
    figures = offer.usd_per_million(market)
    return Decimal("Infinity") if figures is None else figures[1]


def _measurements(rows: Sequence[ResultRow], listed: Collection[str]) -> tuple[dict[str, Measurement], str]:
    """Return what was measured of one job, by type, and why that says nothing of other types, else empty."""
    real = [row for row in rows if not row.rehearsal]
    if not real:
        return {}, "it was only rehearsed: its speed is that of this machine, not of an instance type"
    if any(row.run.nodes > 1 for row in real):
        return {}, "it ran on several instances in parallel: the table describes single ones"
    measured = {row.run.instance_type: _measurement(row) for row in real if row.run.instance_type in listed}
    if not measured:
        names = ", ".join(sorted({row.run.instance_type for row in real}))
        return {}, f"the tables have no {names}"
    return measured, ""


def _measurement(row: ResultRow) -> Measurement:
    metric = row.throughput
    assert metric is not None  # noqa: S101  rows without one are left out
    interval = metric.interval
    spread = 0.0 if interval is None else (interval[1] - interval[0]) / 2 / metric.value
    return Measurement(instance_type=row.run.instance_type, throughput=metric.value, spread=spread)
