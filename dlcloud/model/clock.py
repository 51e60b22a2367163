"""Time, injected so that tests do not wait, and the one loop that waits for a condition with a deadline."""

from collections.abc import Callable
from datetime import datetime
from operator import truth
from typing import Protocol, TypeVar


class Clock(Protocol):
    """Time, injected so that tests do not wait."""

    def now(self) -> datetime:
        """Return the time of day, aware, UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


T = TypeVar("T")


class Timer(Protocol):
    """What waiting needs of a `Clock`; the module `time` will do where no clock is injected."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


def wait_until(
    poll: Callable[[], T],
    is_done: Callable[[T], object] = truth,
    *,
    clock: Timer,
    timeout_s: float,
    poll_s: float,
    first_poll_s: float | None = None,
) -> T:
    """Call `poll` until its value is what is waited for, or the time is over; return the last value.

    Whether it was in time is for the caller to see: a condition by its truth, a list of what is left over
    (`is_done=operator.not_`) by what it still contains.

    Args:
        poll: At least called once, and once more after `timeout_s`.
        is_done: True for the value that ends the wait; by default any true value does.
        clock: Measures and sleeps.
        timeout_s: Seconds until the wait is given up.
        poll_s: Seconds between two calls; 0 where `poll` itself waits.
        first_poll_s: Seconds before the second call; each pause is twice the last, up to `poll_s`.
    """
    deadline = clock.monotonic() + timeout_s
    pause_s = poll_s if first_poll_s is None else first_poll_s
    while not is_done(value := poll()) and clock.monotonic() <= deadline:
        clock.sleep(pause_s)  # of 0 seconds, too: a clock may end the wait
        pause_s = min(2 * pause_s, poll_s)
    return value
