"""The user's job: an amount of work, and what it takes on each instance type."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dlcloud.analysis.cost import ResultRow
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.model.money import SECONDS_PER_HOUR

EXAMPLES = '"1.2M images", "90 epochs" with --epoch "1.28M images", or "8 h at 500 images/s"'
_NUMBER = r"(\d[\d,_]{0,20}(?:\.\d{1,20})?(?:e\d{1,2})?)\s*"
_AMOUNT = re.compile(rf"{_NUMBER}(?:(k|thousand|m|million|b|g|billion)\b)?\s*([a-z_]*)")
_TIME = r"(s|sec|seconds?|min|minutes?|h|hours?|d|days?)"
_RATE = re.compile(rf"{_NUMBER}{_TIME}\s+at\s+(.*\S)\s*/\s*s")
_FACTORS = {"k": 1e3, "t": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_SECONDS = {"s": 1, "m": 60, "h": SECONDS_PER_HOUR, "d": 24 * SECONDS_PER_HOUR}
_EPOCHS = "epochs"
_MOST_ITEMS = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class UserJob:
    """A number of `items`, counted in `unit` (images); an empty unit fits every throughput."""

    items: float
    unit: str
    text: str

    def fits(self, row: ResultRow) -> bool:
        """True if the row's throughput counts the job's items."""
        return row.throughput is not None and self.unit in {"", row.items}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """A job on the instance type and setting of a row; bounds are None where the throughput has none."""

    row: ResultRow
    seconds: float
    low_s: float | None
    high_s: float | None

    def usd(self, market: Market, seconds: float | None = None) -> Decimal | None:
        """Return the cost of the instance for the job, or for `seconds`; None at an unknown price."""
        hourly_usd = self.row.prices.hourly_usd(market)
        if hourly_usd is None:
            return None
        return hourly_usd * Decimal(repr(self.seconds if seconds is None else seconds)) / SECONDS_PER_HOUR


def read_job(text: str, epoch: str = "") -> UserJob:
    """Return a job as its user wrote it.

    Args:
        text: `1.2M images`, `90 epochs`, or `8 h at 500 images/s` (the work done in that time at that rate).
        epoch: The items of an epoch, for a job in epochs: `1.28M` or `1.28M images`.

    Raises:
        RecipeError: It is no job, or the items of its epochs are not given.
    """
    rate = _RATE.fullmatch(text.strip().lower())
    if rate:
        per_second, unit = _amount(rate[3], "--job")
        return _job(_number(rate[1]) * _SECONDS[rate[2][0]] * per_second, unit, text)
    items, unit = _amount(text, "--job")
    if re.fullmatch(_TIME, unit) or unit == "hs":
        raise RecipeError(f'--job "{text}" is a time, not an amount of work', f"for example {EXAMPLES}")
    if unit != _EPOCHS:
        return _job(items, unit, text)
    if not epoch:
        raise RecipeError(f'--job "{text}": an epoch of how many items?', 'add --epoch "1.28M images"')
    per_epoch, unit = _amount(epoch, "--epoch")
    return _job(items * per_epoch, unit, text)


def job_of_options(*, job: str, epoch: str) -> UserJob | None:
    """Return the job that --job and --epoch describe; None without one."""
    if epoch and not job:
        raise RecipeError("--epoch belongs to a --job in epochs", '--job "90 epochs" --epoch "1.28M images"')
    return read_job(job, epoch) if job else None


def estimate_job(rows: Iterable[ResultRow], job: UserJob) -> list[JobEstimate]:
    """Return the estimates of a job, one for each case and type by its fastest setting, by newest results.

    On one type the fastest setting is also the cheapest. Rows that count other items are left out.
    """
    best: dict[tuple[bool, str, str, str], ResultRow] = {}
    for row in rows:
        if not job.fits(row) or row.throughput is None or row.throughput.value <= 0:
            continue
        key = (row.rehearsal, row.run.workload, row.result.case, row.run.instance_type)
        other = best.get(key)
        if other is None or other.throughput is None or row.throughput.value > other.throughput.value:
            best[key] = row
    return [_estimate(row, job) for row in best.values()]


def sort_estimates(estimates: Sequence[JobEstimate], market: Market) -> list[JobEstimate]:
    """Return the estimates by cost in a market, those without a price last, then by time."""

    def key(estimate: JobEstimate) -> tuple[bool, Decimal, float]:
        usd = estimate.usd(market)
        return usd is None, usd or Decimal(0), estimate.seconds

    return sorted(estimates, key=key)


def _estimate(row: ResultRow, job: UserJob) -> JobEstimate:
    if row.throughput is None:
        raise ValueError("a row of an estimate has a throughput")
    low, high = row.throughput.interval or (None, None)
    return JobEstimate(
        row=row,
        seconds=job.items / row.throughput.value,
        low_s=job.items / high if high else None,
        high_s=job.items / low if low else None,
    )


def _job(items: float, unit: str, text: str) -> UserJob:
    if not 0 < items < _MOST_ITEMS:
        raise RecipeError(f'--job "{text}" is no amount of work', f"for example {EXAMPLES}")
    return UserJob(items=items, unit="" if unit == "items" else unit, text=" ".join(text.split()))


def _amount(text: str, option: str) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None:
        raise RecipeError(f'{option} "{text}" is no amount of work', f"for example {EXAMPLES}")
    factor = _FACTORS[match[2][0]] if match[2] else 1
    return _number(match[1]) * factor, _plural(match[3])


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _plural(unit: str) -> str:
    return f"{unit}s" if unit and not unit.endswith("s") else unit
