"""The clock of the flows."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Time, injected so that tests do not wait."""

    def now(self) -> datetime:
        """Return the time of day, aware, UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
