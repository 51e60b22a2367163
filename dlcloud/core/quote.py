"""What an hour of a run's instance type cost in both markets, and what it can do for that."""

from dataclasses import dataclass, replace
from decimal import Decimal

from dlcloud.core.instance import InstanceType, Market, Price
from dlcloud.core.result import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPrices:
    """The prices of one run's instance type in its zone, each with its date and source."""

    on_demand: Price | None = None
    spot: Price | None = None

    def price(self, market: Market) -> Price | None:
        """Return the price in a market; None where it is not known."""
        return self.on_demand if market is Market.ON_DEMAND else self.spot

    def hourly_usd(self, market: Market) -> Decimal | None:
        """Return what an hour costs in a market."""
        price = self.price(market)
        return None if price is None else price.hourly_usd


def quote_of(run: Run, stored: MarketPrices | None, bundled: Price | None) -> MarketPrices:
    """Return a run's prices: those stored with it, then the price it was planned at, then the bundled one.

    Args:
        run: With the price of its own market, as planned.
        stored: What was asked for while it ran; None for a run of an older dlcloud.
        bundled: The on-demand price of the bundled table, whose date tells its age.
    """
    quote = stored or MarketPrices()
    planned = _planned(run)
    if planned is not None and quote.price(run.market) is None:
        side = "on_demand" if run.market is Market.ON_DEMAND else "spot"
        quote = replace(quote, **{side: planned})
    return quote if quote.on_demand is not None else replace(quote, on_demand=bundled)


def peak_tflops(hardware: InstanceType) -> float | None:
    """Return the peak TFLOPS of a type: its GPUs' tensor cores, else FP32, of the CPU where it has no GPU."""
    gpu = hardware.gpu
    if gpu is None:
        return hardware.cpu_fp32_tflops
    each = gpu.tensor_tflops or gpu.fp32_tflops
    return None if each is None else gpu.count * each


def tflops_per_usd(peak: float | None, hourly_usd: Decimal | None) -> Decimal | None:
    """Return the TFLOPS that a dollar an hour buys; None where either is unknown."""
    if peak is None or not hourly_usd:
        return None
    return Decimal(repr(peak)) / hourly_usd


def _planned(run: Run) -> Price | None:
    if run.hourly_usd is None:
        return None
    return Price(
        instance_type=run.instance_type,
        region=run.region,
        market=run.market,
        hourly_usd=run.hourly_usd,
        as_of=run.price_as_of or run.started_at,
        source=run.price_source or "unknown source",
        zone=run.zone if run.market is Market.SPOT else "",
    )
