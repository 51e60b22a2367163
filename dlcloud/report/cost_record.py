"""A line of the cost report for programs: flat, exact, with the same keys in every format."""

from decimal import Decimal

from dlcloud.core.cost import rounded
from dlcloud.core.instance import Market, Price
from dlcloud.core.result_row import ResultRow
from dlcloud.report.table import Cell


def record_of(line: ResultRow) -> dict[str, Cell]:
    """Return a line as a record; USD per million are rounded to a millionth of a dollar."""
    run, throughput = line.run, line.throughput
    return {
        "run": run.run_id,
        "cluster": run.cluster_name,
        "workload": run.workload,
        "instance_type": run.instance_type,
        "rehearsal": run.rehearsal,
        "measured_on": line.hardware.label,
        "cloud": run.cloud,
        "region": run.region,
        "zone": run.zone,
        "market": str(run.market),
        "case": line.result.case,
        "setting": line.result.setting,
        "baseline": line.result.baseline,
        "throughput": throughput.value if throughput else None,
        "throughput_low": throughput.low if throughput else None,
        "throughput_high": throughput.high if throughput else None,
        "unit": throughput.unit if throughput else None,
        "samples": throughput.samples if throughput else None,
        **_comparison(line),
        **_prices(line),
        "peak_tflops": line.peak_tflops,
        "tflops_per_usd": _rounded(line.tflops_per_usd, 3),
        **_bill(line),
        "stable": line.result.stable,
        "warnings": "; ".join(line.result.warnings),
        **{name: metric.value for name, metric in line.result.metrics.items() if name != "throughput"},
        **{f"fact_{name}": value for name, value in line.result.facts.items()},
        "state": str(run.state),
        "started_at": run.started_at,
    }


def _comparison(line: ResultRow) -> dict[str, Cell]:
    told = line.comparison
    return {
        "speed_up": told.ratio if told else None,
        "speed_up_low": told.low if told else None,
        "speed_up_high": told.high if told else None,
        "verdict": told.verdict if told else None,
        **_overall(line),
    }


def _overall(line: ResultRow) -> dict[str, Cell]:
    """Return the comparison with the best baseline of the case, as the best fp32 of several engines."""
    told = line.overall
    return {
        "best_baseline": told.baseline if told else line.result.setting if line.best else None,
        "over_best": told.ratio if told else None,
        "over_best_low": told.low if told else None,
        "over_best_high": told.high if told else None,
        "over_best_verdict": told.verdict if told else None,
    }


def _prices(line: ResultRow) -> dict[str, Cell]:
    """Return the price the run was planned at, then those of both markets with what a million items cost."""
    run = line.run
    return {
        "hourly_usd": run.hourly_usd,
        "price_as_of": run.price_as_of,
        "price_source": run.price_source,
        "usd_per_million": _rounded(line.usd_per_million(Market.ON_DEMAND), 6),
        **_usd_interval(line, Market.ON_DEMAND, "usd_per_million"),
        "spot_usd_per_million": _rounded(line.usd_per_million(Market.SPOT), 6),
        **_usd_interval(line, Market.SPOT, "spot_usd_per_million"),
        **_price("on_demand", line.prices.on_demand),
        **_price("spot", line.prices.spot),
        "spot_zone": line.prices.spot.zone if line.prices.spot else None,
    }


def _usd_interval(line: ResultRow, market: Market, name: str) -> dict[str, Cell]:
    bounds = line.usd_interval(market)
    low, high = bounds or (None, None)
    return {f"{name}_low": _rounded(low, 6), f"{name}_high": _rounded(high, 6)}


def _price(name: str, price: Price | None) -> dict[str, Cell]:
    return {
        f"{name}_usd": price.hourly_usd if price else None,
        f"{name}_as_of": price.as_of if price else None,
        f"{name}_source": price.source if price else None,
    }


def _bill(line: ResultRow) -> dict[str, Cell]:
    """Return what the whole run cost; the lines of one run share it."""
    bill = line.cost
    return {
        "run_usd": _rounded(bill.usd, 6) if bill else None,
        "run_instance_usd": _rounded(bill.instance_usd, 6) if bill else None,
        "run_volume_usd": _rounded(bill.volume_usd, 6) if bill else None,
        "billed_seconds": bill.seconds if bill else None,
        "boot_seconds": bill.boot_s if bill else None,
        "setup_seconds": bill.setup_s if bill else None,
        "run_seconds": bill.run_s if bill else None,
        "rest_seconds": bill.rest_s if bill else None,
        "bill_final": bill.final if bill else None,
    }


def _rounded(amount: Decimal | None, digits: int) -> Decimal | None:
    return None if amount is None else rounded(amount, digits)
