"""The texts of cells and notes: figures with their digits, intervals, marks, durations, progress, facts.

Every table takes its figures from here, so that a figure looks the same wherever it is shown. `marked` is the
one place that adds the mark of a rehearsal.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.run_progress import RunProgress
from dlcloud.benchmarks.harness.schema import Measurement
from dlcloud.model.instance import Market, is_burstable
from dlcloud.model.money import SECONDS_PER_HOUR, exact, money
from dlcloud.report.table import Cell

_REHEARSED = "*"
UNSTABLE = " ~"
BURSTABLE = " †"
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


LONG_NUMBER = r"-?\b\d+\.\d{6,}(?:e-?\d+)?\b"
"""A number with more digits than anyone reads, as those of a search have."""


def short(text: str) -> str:
    """Return a value with six digits, if it is a number with more."""
    return f"{float(text):.6g}" if re.fullmatch(LONG_NUMBER, text) else text


def ratio(value: float) -> str:
    """Format a ratio with three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004  three digits are enough


def interval(metric: Measurement | None) -> str:
    """Format an interval as `low–high`; empty if there is none."""
    bounds = metric.interval if metric else None
    return f"{digits(bounds[0])}–{digits(bounds[1])}" if bounds else ""


def instance_type(row: ResultRow) -> str:
    """Format the type, marked if the figure was measured while the type had CPU credits to spend."""
    return row.run.instance_type + (BURSTABLE if _measures_burst(row) else "")


def burst_note(rows: Iterable[ResultRow]) -> list[str]:
    """Return what the mark of burstable types means; nothing if no row has it."""
    if not any(_measures_burst(row) for row in rows):
        return []
    return ["† burstable: this speed lasts until the CPU credits of the instance are spent"]


def _measures_burst(row: ResultRow) -> bool:
    return not row.rehearsal and is_burstable(row.run.instance_type)


def setting(row: ResultRow) -> str:
    """Format a setting, marked if its figure did not settle."""
    shown = re.sub(LONG_NUMBER, lambda match: short(match[0]), row.result.setting)
    return shown + ("" if row.result.stable else UNSTABLE)


def throughput(row: ResultRow) -> str:
    return digits(row.throughput.value) if row.throughput else ""


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


_MINUTE_S = 60
_DAYS_FROM_H = 72


def duration(seconds: float) -> str:
    """Format a time with three digits, in seconds, minutes, hours or days."""
    unit_s, unit = _unit(seconds)
    return f"{_three_digits(seconds / unit_s)} {unit}"


def with_bounds(seconds: float, low_s: float | None, high_s: float | None) -> str:
    """Format a time with its interval, where it has one, in the unit of the time."""
    text = duration(seconds)
    if low_s is None or high_s is None:
        return text
    unit_s, _ = _unit(seconds)
    return f"{text} ({_three_digits(low_s / unit_s)}–{_three_digits(high_s / unit_s)})"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 2 * _MINUTE_S:
        return 1, "s"
    if seconds < 2 * SECONDS_PER_HOUR:
        return _MINUTE_S, "min"
    if seconds < _DAYS_FROM_H * SECONDS_PER_HOUR:
        return SECONDS_PER_HOUR, "h"
    return 24 * SECONDS_PER_HOUR, "days"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"  # noqa: PLR2004  three digits


def describe_progress(progress: RunProgress) -> str:
    """Return how far a run is, the time left, and how long it has been silent if it stalls."""
    of = f" of {progress.total:,}" if progress.total is not None else ""
    parts = [f"{progress.done:,}{of} {progress.unit}"]
    if progress.workers:
        parts.append(f"{progress.workers} worker(s)")
    if progress.step_s:
        parts.append(f"{duration(progress.step_s)} a step")
    if progress.is_stalled:
        parts.append(f"STALLED: no step for {duration(progress.silent_s)}")
    elif progress.left_s:
        parts.append(f"about {duration(progress.left_s)} left")
    return ", ".join(parts) + (f": {progress.message}" if progress.message else "")


def progress_record(progress: RunProgress) -> dict[str, Any]:
    return {
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "workers": progress.workers,
        "step_seconds": progress.step_s,
        "seconds_left": progress.left_s,
        "silent_seconds": progress.silent_s,
        "stalled": progress.is_stalled,
        "message": progress.message,
    }


def facts_of(row: ResultRow) -> Mapping[str, object]:
    """Return the facts by name; a run that printed several values has them with commas."""
    printed = row.result.facts.get("printed")
    return printed if isinstance(printed, Mapping) else {}


def fact_notes(rows: Sequence[ResultRow], name_of: Callable[[ResultRow], str]) -> list[str]:
    """Return a line for each fact: each of its values, and which of several rows have it."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        for fact, value in facts_of(row).items():
            values.setdefault(fact, {}).setdefault(str(value), {})[name_of(row)] = None
    texts = {
        fact: [
            f"{value} ({', '.join(names)})" if len(rows) > 1 else value for value, names in of_fact.items()
        ]
        for fact, of_fact in values.items()
    }
    return [f"{fact}: {'; '.join(parts)}" for fact, parts in texts.items()]
