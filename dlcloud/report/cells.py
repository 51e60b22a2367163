"""The texts of cells: figures with their digits, intervals, and marks."""

from collections.abc import Callable
from datetime import datetime

from dlcloud.benchmarks.harness.schema import Measurement
from dlcloud.model.instance import Market
from dlcloud.model.money import exact, money
from dlcloud.report.table import Cell
from dlcloud.results.cost import ResultRow

_REHEARSED = "*"
UNSTABLE = " ~"
NO_WINNER = "≈ "
_BYTES_PER_MB = 1e6


def marked(text: str, is_rehearsal: bool) -> str:  # noqa: FBT001  reads as "marked if"
    """Mark a figure of a rehearsal, or the title of such figures; there is nothing to mark without one."""
    return text + _REHEARSED if is_rehearsal and text not in {"", "unknown"} else text


def text_of(value: Cell) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d}"
    if isinstance(value, float):
        return digits(value)
    return "" if value is None else str(value)


def digits(value: float) -> str:
    """Format a figure with four significant digits, without an exponent."""
    return f"{value:.4g}" if value < 10000 else f"{value:.0f}"  # noqa: PLR2004  more digits than four


def ratio(value: float) -> str:
    """Format a ratio with three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004  three digits are enough


def interval(metric: Measurement | None) -> str:
    """Format an interval as `low–high`; empty if there is none."""
    bounds = metric.interval if metric else None
    return f"{digits(bounds[0])}–{digits(bounds[1])}" if bounds else ""


def setting(row: ResultRow) -> str:
    """Format a setting, marked if its figure did not settle."""
    return row.result.setting + ("" if row.result.stable else UNSTABLE)


def speed_up(row: ResultRow) -> str:
    """Format a comparison with its interval; a winner is named only if the interval excludes 1."""
    comparison = row.comparison
    if comparison is None:
        return "baseline" if row.result.baseline else ""
    mark = "" if comparison.is_decided else NO_WINNER
    return f"{mark}{ratio(comparison.ratio)}x ({ratio(comparison.low)}–{ratio(comparison.high)})"


def over_best(row: ResultRow) -> str:
    """Format the speed-up over the best baseline of the case; its interval has no room here."""
    if row.overall is None:
        return "best" if row.best else ""
    return f"{'' if row.overall.is_decided else NO_WINNER}{ratio(row.overall.ratio)}x"


def usd(market: Market) -> Callable[[ResultRow], str]:
    def text(row: ResultRow) -> str:
        amount = row.usd_per_million(market)
        return "unknown" if amount is None else money(amount)

    return text


def usd_interval(market: Market) -> Callable[[ResultRow], str]:
    """Format the interval of the cost of a million items."""

    def text(row: ResultRow) -> str:
        bounds = row.usd_interval(market)
        return f"{money(bounds[0])}–{money(bounds[1])}" if bounds else ""

    return text


def run_usd(row: ResultRow) -> str:
    """Format the cost of the run; `+` if its instance is still up."""
    cost = row.measured.cost
    return "unknown" if cost is None or cost.usd is None else money(cost.usd) + ("" if cost.final else "+")


def price(market: Market) -> Callable[[ResultRow], str]:
    def text(row: ResultRow) -> str:
        hourly_usd = row.prices.hourly_usd(market)
        return "unknown" if hourly_usd is None else exact(hourly_usd)

    return text


def megabytes(row: ResultRow) -> str:
    size = row.result.facts.get("model_bytes")
    return f"{size / _BYTES_PER_MB:.1f}" if isinstance(size, int | float) else text_of(size)


def share_of_peak(row: ResultRow) -> str:
    """Format the share of the machine's peak with what bounds the setting; `+` where the peak was raised."""
    percent = row.share_of_peak_percent
    if percent is None:
        return ""
    raised = "+" if row.result.facts.get("peak_raised_percent") else ""
    return f"{percent:.0f} %{raised} {text_of(row.result.facts.get('bound'))}"


def tflops_per_usd(row: ResultRow) -> str:
    return "" if row.tflops_per_usd is None else f"{row.tflops_per_usd:.1f}"
