"""Run long work for several items in parallel; on Ctrl-C each item cleans up after itself."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from dlcloud.model.clock import Clock
from dlcloud.model.events import Emit, Event
from dlcloud.system.parallel import fan_out

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

SLOT_POLL_S = 0.2


class StoppedError(Exception):
    """Raised in parallel work after Ctrl-C, at its next step, so that it cleans up."""


@dataclass(frozen=True, slots=True)
class StoppableClock:
    """A clock whose `sleep` raises StoppedError after `stop` is set."""

    clock: Clock
    stop: threading.Event

    def now(self) -> datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StoppedError


def stop_emitting(emit: Emit, stop: threading.Event) -> Emit:
    """Return an `emit` that raises StoppedError after `stop` is set: flows emit an event at every step."""

    def emit_unless_stopped(event: Event) -> None:
        if stop.is_set():
            raise StoppedError
        emit(event)

    return emit_unless_stopped


class ExclusiveSlot:
    """A slot for one thread at a time, for work that would be disturbed by the others.

    Args:
        stop: Ends the waiting.
        exclusive: False admits all threads together.
    """

    def __init__(self, stop: threading.Event, *, exclusive: bool) -> None:
        self._stop = stop
        self._lock = threading.Lock() if exclusive else None

    @property
    def is_taken(self) -> bool:
        """True if the next thread has to wait."""
        return self._lock is not None and self._lock.locked()

    def __enter__(self) -> None:
        while self._lock is not None and not self._lock.acquire(timeout=SLOT_POLL_S):
            if self._stop.is_set():
                raise StoppedError

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


class SharedQuota(Generic[K]):
    """Limits that several threads draw from: each waits until what it needs is free.

    Each need must be within its limit; what holds one needs nothing more.

    Args:
        stop: Ends the waiting.
        left: What is free of each limit, by its name.
    """

    def __init__(self, stop: threading.Event, left: Mapping[K, int]) -> None:
        self._stop = stop
        self._left = dict(left)
        self._changed = threading.Condition()

    def has_room(self, needs: Mapping[K, int]) -> bool:
        """True if a thread with these needs does not have to wait."""
        return all(self._left[name] >= amount for name, amount in needs.items())

    @contextmanager
    def taking(self, needs: Mapping[K, int]) -> Iterator[None]:
        """Hold what is needed of each limit while the block runs.

        Raises:
            StoppedError: All are to stop.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self.has_room(needs), timeout=SLOT_POLL_S):
                if self._stop.is_set():
                    raise StoppedError
            for name, amount in needs.items():
                self._left[name] -= amount
        try:
            yield
        finally:
            with self._changed:
                for name, amount in needs.items():
                    self._left[name] += amount
                self._changed.notify_all()


def run_parallel(
    work: Callable[[T], R], items: Sequence[T], *, stop: threading.Event, on_stop: Callable[[], None]
) -> list[R]:
    """Call `work` for all items in parallel and return the values in order.

    Ctrl-C sets `stop` and waits until all have cleaned up. A second one that is raised does not wait.

    Args:
        work: Raises only StoppedError, or because of a bug.
        items: Its arguments.
        stop: Set on Ctrl-C.
        on_stop: Called on Ctrl-C, to wake threads that do not wait on a clock.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        Exception: The first exception of `work`, after all calls have ended.
    """

    def stop_all() -> None:
        stop.set()
        on_stop()

    outcomes = fan_out(work, items, width=None, grace_s=None, on_interrupt=stop_all)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in outcomes if outcome.value is not None]
