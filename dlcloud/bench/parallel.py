"""Do long work for several items at once, each of which cleans up after itself when all are stopped."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from dlcloud.core.events import Emit, Event
from dlcloud.core.protocols import Clock
from dlcloud.system.parallel import fan_out

T = TypeVar("T")
R = TypeVar("R")

TURN_POLL_S = 0.2


class StoppedError(Exception):
    """Ctrl-C was pressed while several were at work: each stops at its next step, and cleans up."""


@dataclass(frozen=True, slots=True)
class StoppableClock:
    """A clock on which nobody waits once all are to stop.

    Raises:
        StoppedError: From `sleep`.
    """

    clock: Clock
    stop: threading.Event

    def now(self) -> datetime:
        """Return the time of day, UTC."""
        return self.clock.now()

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, unless all are to stop."""
        if self.stop.wait(seconds):
            raise StoppedError


def stop_emitting(emit: Emit, stop: threading.Event) -> Emit:
    """Return an `emit` that raises StoppedError once all are to stop: flows tell of every step."""

    def tell(event: Event) -> None:
        if stop.is_set():
            raise StoppedError
        emit(event)

    return tell


class ExclusiveSlot:
    """Lets one at a time go on, where those at work would disturb each other.

    Args:
        stop: Ends the waiting.
        alone: False lets everybody go on at once.
    """

    def __init__(self, stop: threading.Event, *, alone: bool) -> None:
        self._stop = stop
        self._lock = threading.Lock() if alone else None

    @property
    def taken(self) -> bool:
        """Tell whether one would have to wait."""
        return self._lock is not None and self._lock.locked()

    def __enter__(self) -> None:
        """Wait for one's turn."""
        while self._lock is not None and not self._lock.acquire(timeout=TURN_POLL_S):
            if self._stop.is_set():
                raise StoppedError

    def __exit__(self, *_: object) -> None:
        """Let the next go on."""
        if self._lock is not None:
            self._lock.release()


def run_parallel(
    work: Callable[[T], R], items: Sequence[T], *, stop: threading.Event, on_stop: Callable[[], None]
) -> list[R]:
    """Call `work` for every item at once and return the values in order.

    On Ctrl-C all are told to stop, and are waited for: each cleans up. A second Ctrl-C waits no longer.

    Args:
        work: Raises only what is a bug, or StoppedError.
        items: What it is called with.
        stop: Is set on Ctrl-C.
        on_stop: Called then, to wake those that wait for something else than a clock.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        Exception: The first that any raised, after all have ended.
    """

    def stop_all() -> None:
        stop.set()
        on_stop()

    outcomes = fan_out(work, items, width=len(items), grace_s=None, on_interrupt=stop_all)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in outcomes if outcome.value is not None]
