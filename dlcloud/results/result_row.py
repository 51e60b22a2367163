"""One row of the cost report: the result of one setting of a run, with its prices."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result
from dlcloud.model.hardware import Hardware
from dlcloud.model.instance import Market
from dlcloud.model.money import MarketPrices
from dlcloud.model.untrusted import number_or_none
from dlcloud.results.cost import RunCost, tflops_per_usd, usd_per_million
from dlcloud.results.result import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run with the hardware that it ran on, the prices of both markets, and its cost.

    `peak_tflops` and `fp32_tflops` are of the instance type's data sheet; `cost` is None if the instance's
    billing period is unknown.
    """

    run: Run
    hardware: Hardware = field(default_factory=Hardware)
    prices: MarketPrices = field(default_factory=MarketPrices)
    cost: RunCost | None = None
    peak_tflops: float | None = None
    fp32_tflops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The result of one setting of one case of one run.

    Attributes:
        measured: The run.
        result: The measurement.
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

    Args:
        measured: The run.
        results: In the order in which they were measured.
        comparisons: With the baseline of each case.
        overall: With the best baseline of each case.
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
