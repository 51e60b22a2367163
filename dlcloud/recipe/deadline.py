"""The deadline of a recipe: when a training is to be finished, and how much work it is."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dlcloud.model.errors import RecipeError
from dlcloud.model.money import money
from dlcloud.recipe.document import parse

_UNITS = {"w": timedelta(weeks=1), "d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*[wdhm]\s*)+", re.ASCII)
_TERM = re.compile(r"(\d+(?:\.\d+)?)\s*([wdhm])", re.ASCII)
_LONGEST = timedelta(days=30)
"""The longest deadline is the longest `budget.max_hours`, after which instances terminate themselves."""

_FORMS = "write a duration (52h, 2d 12h) or a date-time with its time zone (2026-11-27T18:00+01:00)"


def read_duration(text: str) -> timedelta | None:
    """Return the length of `52h`, `90m` or `2d 12h`; None for any other text."""
    if not _DURATION.fullmatch(text.strip()):
        return None
    terms = [(Decimal(number), unit) for number, unit in _TERM.findall(text)]
    if any(number > 100_000 for number, _ in terms):  # noqa: PLR2004  far beyond the longest, before an overflow
        return timedelta.max
    return sum((_UNITS[unit] * float(number) for number, unit in terms), timedelta())


def _read_date_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo is not None else None


def _check_finish(text: str) -> str:
    length = read_duration(text)
    if length is None and _read_date_time(text) is None:
        raise ValueError(_FORMS)
    if length is not None and not timedelta(minutes=1) <= length <= _LONGEST:
        raise ValueError(f"a deadline is between 1 minute and {_LONGEST.days} days away")
    return text.strip()


class Work(BaseModel):
    """The whole work of a training, in one unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int | None = Field(default=None, ge=1, description="Optimizer steps.")
    samples: int | None = Field(default=None, ge=1, description="Samples, counted each time they are seen.")
    epochs: float | None = Field(default=None, gt=0, description="Passes over the data set.")
    per_hour: float | None = Field(
        default=None,
        gt=0,
        description="Units that one worker does in an hour: assumed until it is measured.",
    )

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if sum(value is not None for value in (self.steps, self.samples, self.epochs)) != 1:
            raise ValueError("name one of steps, samples, epochs")
        return self

    @property
    def amount(self) -> float:
        """The work in its unit."""
        return float(next(v for v in (self.steps, self.samples, self.epochs) if v is not None))

    @property
    def unit(self) -> str:
        return next(name for name in ("steps", "samples", "epochs") if getattr(self, name) is not None)

    @property
    def worker_hours(self) -> float | None:
        """The hours that one worker alone would take; None while its speed is unknown."""
        return None if self.per_hour is None else self.amount / self.per_hour

    def steps_of(self, batch: int | None, samples: int | None) -> int | None:
        """Return the work in steps, as the trainer counts them; None while what it takes is unknown.

        Args:
            batch: Samples of a step.
            samples: Samples of the data set.
        """
        if self.steps is not None:
            return self.steps
        if not batch or not samples:
            return None
        # The last step of an epoch has the rest.
        steps_of_epoch = -(-samples // batch)
        epochs = self.epochs if self.epochs is not None else self.amount / samples
        return max(1, round(epochs * steps_of_epoch))


class Deadline(BaseModel):
    """When an elastic training is to be finished; the cheapest mix of spot and on-demand is chosen for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    finish: Annotated[str, AfterValidator(_check_finish)] = Field(
        description="A duration from the start of `up` (52h, 2d 12h), or a date-time with its time zone."
    )
    work: Work = Field(description="The whole work: steps, samples or epochs.")

    @property
    def length(self) -> timedelta | None:
        """The time from the start of `up`; None for a date-time."""
        return read_duration(self.finish)

    def at(self, begun: datetime) -> datetime:
        """Return the deadline of a training that began at a time."""
        length = self.length
        if length is not None:
            return begun + length
        moment = _read_date_time(self.finish)
        return begun if moment is None else moment  # a checked text is one or the other


def refuse_no_choice(*, is_elastic: bool, market: str, fixed_count: int | None) -> None:
    """Refuse a deadline where nothing can be chosen; `fixed_count` is a count without a range.

    Raises:
        ValueError: It cannot.
    """
    if not is_elastic:
        raise ValueError("a deadline belongs to an elastic workload; add elastic: {} to its command")
    if market != "spot-then-on-demand":
        raise ValueError("a deadline needs instances.market: spot-then-on-demand, to choose between both")
    if fixed_count is not None:
        range_text = f"{{min: 1, max: {fixed_count}}}"
        raise ValueError(f"a deadline changes the number of instances: write count: {range_text}")


def describe_deadline(deadline: Deadline, *, hourly_usd: Decimal | None, size: int) -> list[str]:
    """Return what a deadline means for a plan, and the price of not using spot at all.

    Args:
        deadline: The recipe's.
        hourly_usd: An hour of the cheapest on-demand instance, with its disk and address; None if unknown.
        size: The most instances.
    """
    work = deadline.work
    lines = [
        f"deadline {deadline.finish}: {work.amount:g} {work.unit} on up to {size} instances",
        "all spot that is useful, on-demand from the latest safe moment on",
    ]
    hours = work.worker_hours
    if hours is None:
        lines.append("what it costs is known once the speed is measured, or deadline.work.per_hour is given")
    elif hourly_usd is not None:
        usd, length = money(hourly_usd * Decimal(hours)), f"{hours / size:.1f} h"
        lines.append(f"all on-demand from the start would cost about {usd} USD and take {length}")
    return lines


def check_deadline(
    deadline: Deadline | None, *, max_hours: float, now: datetime, text: str = "", file: str = ""
) -> None:
    """Refuse a deadline that has passed, or before which the instances would end themselves.

    Args:
        deadline: The recipe's.
        max_hours: The recipe's `budget.max_hours`.
        now: The time of `up`.
        text: The recipe, for the line in the message.
        file: Its name.

    Raises:
        RecipeError: It cannot be met whatever is launched.
    """
    if deadline is None:
        return
    left = deadline.at(now) - now
    place = f"{file}:{parse(text).line_of(('deadline', 'finish'))}: " if file else ""
    if left <= timedelta(0):
        message = f"{place}deadline.finish: {deadline.finish} is in the past (it is {now:%Y-%m-%dT%H:%M:%SZ})"
        raise RecipeError(message, "give a later date-time, or a duration such as 52h")
    if left > timedelta(hours=max_hours):
        hours = left.total_seconds() / 3600
        message = (
            f"{place}deadline.finish: the instances terminate themselves {max_hours:g} h after their launch, "
        )
        raise RecipeError(
            f"{message}the deadline is in {hours:.1f} h", f"set budget.max_hours to {hours:.0f} or more"
        )
