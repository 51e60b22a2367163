"""One line of the cost report: what a setting of a run measured, and what that costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from dlcloud.core.cost import MarketPrices, RunCost, tflops_per_usd, usd_per_million
from dlcloud.core.instance import Market
from dlcloud.core.result import Comparison, Hardware, Metric, Result, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One setting of one case of one run, with its comparison to the baseline where there is one.

    `overall` compares it with the best baseline of its case, as the best fp32 of several engines, where there
    was a choice of them; `best` is True of that baseline itself. `prices` has the prices of both markets,
    `cost` what the whole run cost, `peak_tflops` is of the type.
    """

    run: Run
    hardware: Hardware
    result: Result
    comparison: Comparison | None
    overall: Comparison | None = None
    best: bool = False
    prices: MarketPrices = field(default_factory=MarketPrices)
    cost: RunCost | None = None
    peak_tflops: float | None = None

    @property
    def throughput(self) -> Metric | None:
        """Return items a second; for a workload that reports none, runs a second by its wall time."""
        duration = self.result.metrics.get("duration")
        if "throughput" in self.result.metrics or duration is None or not duration.value:
            return self.result.metrics.get("throughput")
        return Metric(
            value=1 / duration.value,
            low=1 / duration.high if duration.high else None,
            high=1 / duration.low if duration.low else None,
            unit="runs/s",
            samples=duration.samples,
        )

    @property
    def items(self) -> str:
        """Return what a throughput counts: images, samples, tokens, runs."""
        return self.throughput.unit.removesuffix("/s") if self.throughput else "items"

    @property
    def has_interval(self) -> bool:
        """Tell whether the throughput has an interval; a single sample has none."""
        throughput = self.throughput
        return (
            throughput is not None
            and throughput.low is not None
            and throughput.high is not None
            and throughput.low < throughput.high
        )

    @property
    def rehearsal(self) -> bool:
        """Tell whether the type was only rehearsed."""
        return self.run.rehearsal

    def usd_per_million(self, market: Market) -> Decimal | None:
        """Return what a million items cost on the run's instance type in a market."""
        return self._usd_at(market, self.throughput.value if self.throughput else None)

    def usd_interval(self, market: Market) -> tuple[Decimal, Decimal] | None:
        """Return the interval of the cost of a million items: the price is certain, the throughput is not."""
        if not self.has_interval or self.throughput is None:
            return None
        low, high = self._usd_at(market, self.throughput.high), self._usd_at(market, self.throughput.low)
        return None if low is None or high is None else (low, high)

    @property
    def tflops_per_usd(self) -> Decimal | None:
        """Return the peak TFLOPS that an hour's dollar buys on demand."""
        return tflops_per_usd(self.peak_tflops, self.prices.hourly_usd(Market.ON_DEMAND))

    def _usd_at(self, market: Market, per_second: float | None) -> Decimal | None:
        hourly = self.prices.hourly_usd(market)
        return None if hourly is None or per_second is None else usd_per_million(hourly, per_second)


def result_rows(
    runs: Iterable[Run],
    results: Mapping[str, Sequence[Result]],
    comparisons: Mapping[str, Sequence[Comparison]],
    hardware: Mapping[str, Hardware],
    *,
    overall: Mapping[str, Sequence[Comparison]] | None = None,
    prices: Mapping[str, MarketPrices] | None = None,
    costs: Mapping[str, RunCost] | None = None,
    peaks: Mapping[str, float | None] | None = None,
) -> list[ResultRow]:
    """Join what the store holds of each run, in the order of the runs.

    Args:
        runs: Which.
        results: By run id, as are the comparisons, the hardware, the prices and the costs.
        comparisons: Each with the baseline of its case.
        hardware: What each run really ran on.
        overall: Each with the best baseline of its case, by run id.
        prices: The prices of both markets.
        costs: What each run cost.
        peaks: The peak TFLOPS by instance type.
    """
    prices, costs, peaks = prices or {}, costs or {}, peaks or {}
    compared = _by_candidate(comparisons)
    beside_best = _by_candidate(overall or {})
    best = {(run_id, case, each.baseline) for (run_id, case, _), each in beside_best.items()}
    return [
        ResultRow(
            run=run,
            hardware=hardware.get(run.run_id, Hardware()),
            result=result,
            comparison=compared.get((run.run_id, result.case, result.setting)),
            overall=beside_best.get((run.run_id, result.case, result.setting)),
            best=(run.run_id, result.case, result.setting) in best,
            prices=prices.get(run.run_id) or MarketPrices(),
            cost=costs.get(run.run_id),
            peak_tflops=peaks.get(run.instance_type),
        )
        for run in runs
        for result in results.get(run.run_id, ())
    ]


def _by_candidate(comparisons: Mapping[str, Sequence[Comparison]]) -> dict[tuple[str, str, str], Comparison]:
    """Return comparisons by run id, case and candidate."""
    return {
        (run_id, each.case, each.candidate): each for run_id, of_run in comparisons.items() for each in of_run
    }
