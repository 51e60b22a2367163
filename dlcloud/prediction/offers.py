"""Predictions with prices: what a million items cost on each type, and which jobs can be predicted at all."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from types import MappingProxyType

from dlcloud.analysis.cost import ResultRow, usd_per_million
from dlcloud.model.instance import Accelerator, Market
from dlcloud.prediction.entrants import choose_entrants
from dlcloud.prediction.gpu_types import predict_on_gpus
from dlcloud.prediction.measured_types import Kind, Reference, Traits, TypeTable
from dlcloud.prediction.predictor import (
    Belief,
    Calibration,
    Estimate,
    Measurement,
    learn,
    predict,
)
from dlcloud.prediction.resemblance import describe_by_facts, resemblances
from dlcloud.prediction.rules import BY_PASSMARK, FEW_MEASURED, rankings_by_passmark, rule_levels


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
        race: The types to race, the most important first.
    """

    workload: str
    case: str
    setting: str
    unit: str
    offers: tuple[PredictedOffer, ...] = ()
    refused: str = ""
    resembles: tuple[tuple[str, float], ...] = ()
    by_rule: str = ""
    race: tuple[str, ...] = ()


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

Source: `tests/performance/prediction.py`.
"""


def candidates_of(jobs: Sequence[PredictedJob], market: Market, most: int = MOST_RACED) -> tuple[str, ...]:
    """Return the types that can be the cheapest by their intervals, in the order in which to race them.

    Those that simple rules name are among the first. Burstable types are none. The settings of one case
    compete; of several cases each names its own.
    """
    best: dict[str, tuple[int, Decimal]] = {}
    for case in {(job.workload, job.case, job.unit) for job in jobs}:
        mine = [job for job in jobs if (job.workload, job.case, job.unit) == case]
        figures = {id(job): _figures(job.offers, market) for job in mine}
        every = [usd for of_job in figures.values() for usd in of_job.values()]
        ceiling = min((high for _, _, high in every), default=Decimal(0))
        for job in mine:
            open_to = {name: usd for name, (low, usd, _) in figures[id(job)].items() if low <= ceiling}
            entrants = [name for name in job.race if open_to and name in figures[id(job)]]
            rest = sorted((usd, name) for name, usd in open_to.items() if name not in entrants)
            for place, name in enumerate((*entrants, *(name for _, name in rest))):
                own = place, figures[id(job)][name][1]
                best[name] = min(best.get(name, own), own)
    return tuple(sorted(best, key=best.__getitem__)[:most])


def _figures(offers: Sequence[PredictedOffer], market: Market) -> dict[str, tuple[Decimal, Decimal, Decimal]]:
    """Return low, middle and high USD of a million items on each type that may be named."""
    return {
        offer.estimate.instance_type: usd
        for offer in offers
        if not offer.is_burstable and (usd := offer.usd_per_million(market)) is not None
    }


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
    by_rule, entrants = "", list[str]()
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
                is_burstable=_is_throttled(table.rows[estimate.instance_type].traits),
                hourly_usd=prices[estimate.instance_type],
            )
            for estimate in predict(belief, names, Calibration())
        ]
        may_race = {
            name: offer
            for offer in offers
            if (name := offer.estimate.instance_type) in table.rows
            if market in offer.hourly_usd and not offer.is_burstable
        }
        hourly = {name: float(offer.hourly_usd[market]) for name, offer in may_race.items()}
        predicted = {name: offer.estimate.throughput for name, offer in may_race.items()}
        by_rule, entrants = race_of(belief, hourly, predicted, rule_levels(table).get(BY_PASSMARK))
    offers.sort(key=lambda offer: _middle(offer, market))
    figures = _figures(offers, market)
    ceiling = min((high for _, _, high in figures.values()), default=Decimal(0))
    on_sheets = [name for name, (low, _, _) in figures.items() if name in gpus and low <= ceiling]
    race = [name for pair in zip_longest(entrants, on_sheets) for name in pair if name]
    return PredictedJob(
        workload=workload,
        case=case,
        setting=setting,
        unit=unit,
        offers=tuple(offers),
        refused=refused,
        resembles=_resembled(belief) if on_cpus else (),
        by_rule=by_rule,
        race=tuple(race),
    )


def _is_throttled(traits: Traits) -> bool:
    return traits.is_burstable or traits.family == "t1"  # the oldest, which has no credits to set


LIKELY = (60, 30, 15)
"""How many types may race: the cheapest as predicted, by the first choice's rule, and by PassMark."""


def race_of(
    belief: Belief,
    hourly_usd: Mapping[str, float],
    predicted: Mapping[str, float],
    passmark: Mapping[str, float] | None,
    most: int = MOST_RACED,
) -> tuple[str, list[str]]:
    """Return the first choice, if a rule makes it, and the CPU types to race, the most important first.

    Args:
        belief: After the measurements.
        hourly_usd: Prices of the types that may be named.
        predicted: The throughput of each.
        passmark: The logarithm of each one's PassMark; None without a table of it.
        most: How many may race.
    """
    cheapest = sorted(hourly_usd, key=lambda name: hourly_usd[name] / predicted[name])
    by_rules: list[list[str]] = []
    few = len(belief.measurements) <= FEW_MEASURED
    if hourly_usd and passmark is not None and few and not belief.is_language:
        by_rules = rankings_by_passmark(passmark, hourly_usd, predicted)
    rankings = [cheapest, *by_rules]
    likely = dict.fromkeys(
        name for ranking, count in zip(rankings, LIKELY, strict=False) for name in ranking[:count]
    )
    first = dict.fromkeys(ranking[0] for ranking in by_rules or rankings if ranking)
    race = choose_entrants(belief, {name: hourly_usd[name] for name in likely}, [*first], most)
    return race[0] if by_rules else "", race


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
