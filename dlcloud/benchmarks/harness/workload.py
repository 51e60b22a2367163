"""What a worker's factories return: a framework made ready to run, or facts alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .roofline import Peak


class Workload(Protocol):
    """A framework made ready to run one setting.

    It may have `untimed_s`: the seconds of its steps so far that do not count, as of going back to a
    beginning.
    """

    items_per_step: int  # how many images one step takes; 0 where there is nothing to time
    facts: Mapping[str, Any]  # what is known of the setting before it runs

    def step(self) -> None:
        """Run once and wait for the result."""

    def outputs(self) -> list[list[float]]:
        """Return what the setting computes, a row an input, for comparison between settings."""


@runtime_checkable
class PeakMeasuring(Protocol):
    """A workload that can say what its engine reaches at best in the data type that it computes in."""

    def measure_peak(self, seconds: float) -> Peak | None:
        """Measure the peak in a few times `seconds`; None if the engine has no product of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntimedWorkload:
    """A workload that only reports facts, such as those of a model that it built."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing."""

    def outputs(self) -> list[list[float]]:
        """Return nothing."""
        return []
