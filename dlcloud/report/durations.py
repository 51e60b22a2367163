"""Times in words, with three digits."""

from dlcloud.model.money import SECONDS_PER_HOUR

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
