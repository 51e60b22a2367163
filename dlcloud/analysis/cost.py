"""What runs cost, and the rows that every table of results is made of.

`app.results.rows` reads runs, prices and billing periods from the store. `prices_of_run` chooses the prices
of a run, `cost_of_run` computes its part of its instance's bill, and `rows_of_run` joins both with each
result. The costs of all runs of an instance must add up to the instance's bill. Money is Decimal, times are
aware UTC.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from dlcloud.analysis.result import Run
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.ebs_prices import volume_usd
from dlcloud.model.instance import Hardware, Market, Price
from dlcloud.model.money import (
    SECONDS_PER_HOUR,
    MarketPrices,
    address_usd,
    billed_seconds,
    cluster_usd,
    costs_nothing,
    instance_usd,
)
from dlcloud.model.untrusted import number_or_none

MILLION = 1_000_000


SLOWEST = 1e-12
"""Items a second; slower is no throughput, and has no cost that can be stated."""


def usd_per_million(hourly_usd: Decimal, per_second: float) -> Decimal | None:
    """Return the cost of a million items at a throughput of `per_second` items; None at no throughput."""
    if per_second <= SLOWEST:
        return None
    return hourly_usd * MILLION / (SECONDS_PER_HOUR * Decimal(repr(per_second)))


def tflops_per_usd(peak: float | None, hourly_usd: Decimal | None) -> Decimal | None:
    """Return the TFLOPS that a dollar an hour buys; None if either is unknown."""
    if peak is None or not hourly_usd:
        return None
    return Decimal(repr(peak)) / hourly_usd


def prices_of_run(run: Run, stored: MarketPrices | None, bundled: Price | None) -> MarketPrices:
    """Return a run's prices: those stored with it, then the price it was planned at, then the bundled one.

    They are of all its nodes together.

    Args:
        run: Its `hourly_usd` is the planned price of its own market.
        stored: Prices that were looked up while it ran; None for a run of an older dlcloud.
        bundled: The on-demand price of the bundled table.
    """
    prices = stored or MarketPrices()
    if run.hourly_usd is not None and prices.price(run.market) is None:
        planned = Price(
            instance_type=run.instance_type,
            region=run.region,
            market=run.market,
            hourly_usd=run.hourly_usd,
            as_of=run.price_as_of or run.started_at,
            source=run.price_source or "unknown source",
            zone=run.zone if run.market is Market.SPOT else "",
        )
        side = "on_demand" if run.market is Market.ON_DEMAND else "spot"
        prices = replace(prices, **{side: planned})
    prices = prices if prices.on_demand is not None else replace(prices, on_demand=bundled)
    return prices.times(run.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingPeriod:
    """An instance as it is billed, from launch to termination; `ended_at` is None while it is up.

    `interrupted`: EC2 took it back.
    """

    instance_id: str
    launched_at: datetime
    ended_at: datetime | None
    disk_gib: int
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The billed seconds of a run's instance, phase by phase, and their cost.

    Attributes:
        boot_s: From the launch until the instance answered, or the idle time since the run before.
        setup_s: Building the environment; None for a run of an older dlcloud, whose `boot_s` holds both.
        run_s: The program itself.
        rest_s: Fetching files and terminating the instance, the unused part of the first minute included.
        instance_usd: None at an unknown price.
        volume_usd: Of the EBS volume.
        address_usd: Of the public address.
        final: The instance has ended, so that the cost no longer grows.
    """

    boot_s: int
    setup_s: int | None
    run_s: int
    rest_s: int
    instance_usd: Decimal | None
    volume_usd: Decimal
    final: bool
    address_usd: Decimal = Decimal(0)

    @property
    def seconds(self) -> int:
        return self.boot_s + (self.setup_s or 0) + self.run_s + self.rest_s

    @property
    def usd(self) -> Decimal | None:
        """The cost of instance, volume and address together."""
        if self.instance_usd is None:
            return None
        return self.instance_usd + self.volume_usd + self.address_usd


class InstanceRuns:
    """Every run of one instance, the oldest first."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._places = {run.run_id: place for place, run in enumerate(runs)}
        self._whole: tuple[datetime, float] | None = None

    def before(self, run: Run) -> Run | None:
        """Return the run before one of them; None for the first."""
        place = self._places[run.run_id]
        return self._runs[place - 1] if place else None

    def is_last(self, run: Run) -> bool:
        return self._places[run.run_id] == len(self._runs) - 1

    @property
    def are_trials(self) -> bool:
        return all(run.experiment for run in self._runs)

    def share_of(self, run: Run, now: datetime) -> Decimal:
        """Return the run's share of the time of all runs, which may have run at the same time."""
        if self._whole is None or self._whole[0] != now:
            self._whole = now, sum(_seconds(one, now) for one in self._runs)
        whole = self._whole[1]
        return Decimal(repr(_seconds(run, now) / whole)) if whole > 0 else 1 / Decimal(len(self._runs))


def _seconds(run: Run, now: datetime) -> float:
    return max(0.0, ((run.ended_at or now) - run.started_at).total_seconds())


def cost_of_run(run: Run, on_instance: InstanceRuns, period: BillingPeriod, now: datetime) -> RunCost:
    """Return a run's cost; the costs of all runs of an instance add up to the instance's.

    The first run carries the boot, the last one the end; each carries the time since the run before it.
    Trials of an experiment, several of which may run at the same time, share the whole bill by their time.

    `on_instance` has every run of the instance, this one included.
    """
    total = billed_seconds(period.launched_at, period.ended_at or now)
    is_free = costs_nothing(period.interrupted, period.launched_at, period.ended_at)
    hourly_usd = Decimal(0) if is_free else run.hourly_usd
    if on_instance.are_trials:
        share = on_instance.share_of(run, now)
        seconds = round(total * share)
        run_s = min(seconds, round(_seconds(run, now)))
        return RunCost(
            boot_s=seconds - run_s,
            setup_s=0,
            run_s=run_s,
            rest_s=0,
            instance_usd=None if hourly_usd is None else instance_usd(hourly_usd, total) * share,
            volume_usd=volume_usd(period.disk_gib, total, region=run.region) * share,
            address_usd=address_usd(total) * share,
            final=period.ended_at is not None,
        )

    def offset(time: datetime | None) -> int:
        """Return whole seconds since the launch, never beyond what is billed."""
        elapsed = ((time or now) - period.launched_at).total_seconds()
        return min(total, max(0, round(elapsed)))

    before = on_instance.before(run)
    begun = 0 if before is None else offset(before.ended_at)
    started = max(begun, offset(run.started_at))
    ended = max(started, offset(run.ended_at))
    until = total if on_instance.is_last(run) else ended
    setup = None if run.setup_at is None else min(started, max(begun, offset(run.setup_at)))
    seconds = until - begun
    return RunCost(
        boot_s=(started if setup is None else setup) - begun,
        setup_s=None if setup is None else started - setup,
        run_s=ended - started,
        rest_s=until - ended,
        instance_usd=None if hourly_usd is None else instance_usd(hourly_usd, seconds),
        volume_usd=volume_usd(period.disk_gib, seconds, region=run.region),
        address_usd=address_usd(seconds),
        final=period.ended_at is not None,
    )


def cost_of_nodes(costs: Sequence[RunCost], nodes: int) -> RunCost:
    """Return the cost of a job over several nodes, with the phases of rank 0, whose cost is the first.

    `costs` may lack other nodes, as in an imported run: they are taken to cost what the others do.
    """
    priced = [cost.instance_usd for cost in costs if cost.instance_usd is not None]
    share = Decimal(nodes) / len(costs)
    return replace(
        costs[0],
        instance_usd=sum(priced, Decimal(0)) * share if len(priced) == len(costs) else None,
        volume_usd=sum((cost.volume_usd for cost in costs), Decimal(0)) * share,
        address_usd=sum((cost.address_usd for cost in costs), Decimal(0)) * share,
        final=all(cost.final for cost in costs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledCost:
    """The amount on AWS's bill; `estimated` until AWS has closed the month."""

    usd: Decimal
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """A cluster's estimate, None at an unknown price, next to AWS's bill, None if there is none yet."""

    cluster: Cluster
    estimate: Decimal | None
    billed: BilledCost | None

    @property
    def difference(self) -> Decimal | None:
        """The bill less the estimate."""
        return None if self.estimate is None or self.billed is None else self.billed.usd - self.estimate


def reconcile(
    clusters: Iterable[Cluster],
    members: Mapping[str, Sequence[Member]],
    billed: Mapping[str, BilledCost],
    now: datetime,
) -> list[Reconciliation]:
    """Return estimate and bill of clusters by cluster id; the local EC2 bills nothing and is left out."""
    return [
        Reconciliation(
            cluster=cluster,
            estimate=cluster_usd(cluster, members.get(cluster.cluster_id, ()), now),
            billed=billed.get(cluster.cluster_id),
        )
        for cluster in clusters
        if cluster.cloud != "local"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run with the hardware that it ran on, the prices of both markets, and its cost.

    `peak_tflops` and `fp32_tflops` are of the instance type's data sheet; `cost` is None if the instance's
    billing period is unknown. `interrupted` are the runs that it repeats or continues, with their costs.
    """

    run: Run
    hardware: Hardware = field(default_factory=Hardware)
    prices: MarketPrices = field(default_factory=MarketPrices)
    cost: RunCost | None = None
    peak_tflops: float | None = None
    fp32_tflops: float | None = None
    interrupted: tuple["MeasuredRun", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The result of one setting of one case of one run.

    Attributes:
        comparison: With the baseline of its case, if it is not the baseline itself.
        overall: With the best baseline of its case, if there are several (fp32 of several engines).
        best: It is the best of several baselines.
    """

    measured: MeasuredRun
    result: Result
    comparison: Comparison | None = None
    overall: Comparison | None = None
    best: bool = False

    @property
    def run(self) -> Run:
        return self.measured.run

    @property
    def prices(self) -> MarketPrices:
        return self.measured.prices

    @property
    def throughput(self) -> Measurement | None:
        """Items per second; for a workload that reports none, runs per second by its wall time."""
        duration = self.result.metrics.get("duration")
        if "throughput" in self.result.metrics or duration is None or not duration.value:
            return self.result.metrics.get("throughput")
        return Measurement(
            value=1 / duration.value,
            low=1 / duration.high if duration.high else None,
            high=1 / duration.low if duration.low else None,
            unit="runs/s",
            samples=duration.samples,
        )

    @property
    def items(self) -> str:
        """The unit that a throughput counts: images, samples, tokens, runs."""
        return self.throughput.unit.removesuffix("/s") if self.throughput else "items"

    @property
    def has_interval(self) -> bool:
        """True if the throughput has an interval; a single sample has none."""
        return self.throughput is not None and self.throughput.interval is not None

    @property
    def rehearsal(self) -> bool:
        """True if the instance type was only rehearsed."""
        return self.run.rehearsal

    def usd_per_million(self, market: Market) -> Decimal | None:
        """Return the cost of a million items on the run's instance type in a market."""
        return self._usd_at(market, self.throughput.value if self.throughput else None)

    def usd_interval(self, market: Market) -> tuple[Decimal, Decimal] | None:
        """Return the interval of the cost of a million items: the price is certain, the throughput is not."""
        if self.throughput is None or self.throughput.interval is None:
            return None
        low, high = self._usd_at(market, self.throughput.high), self._usd_at(market, self.throughput.low)
        return None if low is None or high is None else (low, high)

    @property
    def tflops_per_usd(self) -> Decimal | None:
        """Peak TFLOPS that a dollar an hour buys on demand."""
        return tflops_per_usd(self.measured.peak_tflops, self.prices.hourly_usd(Market.ON_DEMAND))

    @property
    def share_of_peak_percent(self) -> float | None:
        """The share of what the same engine reached at best on the machine; None if it was not measured."""
        return number_or_none(self.result.facts.get("share_of_peak_percent"))

    @property
    def share_of_sheet_percent(self) -> float | None:
        """The share of the data sheet's peak in the data type; None where that is not stated or exceeded."""
        reached, dtype = (self.result.facts.get(name) for name in ("reached_gflops", "peak_dtype"))
        fp32, peak = self.measured.fp32_tflops, self.measured.peak_tflops
        tensor = peak if peak != fp32 else None
        stated = {"fp32": fp32, "bf16": tensor, "fp16": tensor}.get(str(dtype))
        reached_gflops = number_or_none(reached)
        if self.rehearsal or not stated or reached_gflops is None:
            return None
        percent = reached_gflops / stated / 10
        return round(percent, 2) if percent <= 100 else None  # noqa: PLR2004  the clock was above the sheet's

    def _usd_at(self, market: Market, per_second: float | None) -> Decimal | None:
        hourly = self.prices.hourly_usd(market)
        return None if hourly is None or per_second is None else usd_per_million(hourly, per_second)


def rows_of_run(
    measured: MeasuredRun,
    results: Iterable[Result],
    comparisons: Iterable[Comparison] = (),
    overall: Iterable[Comparison] = (),
) -> list[ResultRow]:
    """Return a row for each result of a run.

    `comparisons` are with the baseline of each case, `overall` with its best baseline.
    """
    compared = {(comparison.case, comparison.candidate): comparison for comparison in comparisons}
    beside_best = {(comparison.case, comparison.candidate): comparison for comparison in overall}
    best = {(comparison.case, comparison.baseline) for comparison in beside_best.values()}
    return [
        ResultRow(
            measured=measured,
            result=result,
            comparison=compared.get((result.case, result.setting)),
            overall=beside_best.get((result.case, result.setting)),
            best=(result.case, result.setting) in best,
        )
        for result in results
    ]
