"""Events of the flows: flows emit them, the console draws them, nothing else prints."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dlcloud.model.clock import Clock

PREFLIGHT = "looking at credentials, types, image, prices, network"
"""The stage before a plan is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something to show the user. `instance_id` is empty where it concerns no single instance."""

    message: str
    instance_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """A stage of a flow began; the console shows it with a clock until the next event of that stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone(Event):
    """A stage ended after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """A long stage moved on: `done` of `total` units, `remaining_s` by its own estimate.

    `rows` are names and values, for a terminal to show as a table in place of the message.
    """

    done: float | None = None
    total: float | None = None
    remaining_s: float | None = None
    rows: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Info(Event):
    """A fact outside any stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A problem that does not stop the flow."""


Emit = Callable[[Event], None]


@contextmanager
def stage(emit: Emit, clock: Clock, message: str, *, instance_id: str = "") -> Iterator[None]:
    """Emit the start of a stage and, unless the block raises, its end with its duration."""
    started = clock.monotonic()
    emit(StageStarted(message=message, instance_id=instance_id))
    yield
    emit(StageDone(message=message, instance_id=instance_id, seconds=clock.monotonic() - started))


def describe_values(values: Mapping[str, str]) -> str:
    """Return the values of a trial in one line, as `lr=0.1 depth=3`."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "(no values)"
