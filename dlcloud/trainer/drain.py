"""The request that a worker leaves after its step: by a signal, or by the control file."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

DRAINED = 10
"""Exit status of a worker that left because it was asked to; 0 is one whose run is done."""

LEAVE_S = 60
"""A worker leaves so long before an interruption, by default; it trains until then."""

IDLE_WAIT_S = 1.0
"""A wait for other workers that lasts longer may be interrupted: no step is under way in it."""


class DrainedError(SystemExit):
    """The worker has left; ends a script that does not catch it with status DRAINED."""

    def __init__(self) -> None:
        super().__init__(DRAINED)


class _WaitInterruptedError(BaseException):
    """Interrupts a wait; not an Exception, so that no library in between handles it."""


@dataclass(slots=True)
class Drain:
    """A request to leave, and its cause."""

    cause: str | None = None
    _is_waiting: bool = field(default=False, init=False)
    _has_handlers: bool = field(default=False, init=False)
    _is_pointless: Callable[[], bool] = field(default=lambda: False, init=False)

    def request(self, cause: str) -> None:
        """Leave after this step; the first cause is kept."""
        self.cause = self.cause or cause

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Let SIGTERM request it inside the block."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._has_handlers = True
        try:
            yield
        finally:
            self._has_handlers = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self, is_pointless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Let a drain interrupt the block once it has lasted too long; the block then ends without an error.

        Args:
            is_pointless: True if there is nothing to wait for any more, drain or not.
        """
        self._is_waiting, self._is_pointless = True, is_pointless
        if self._has_handlers:
            signal.setitimer(signal.ITIMER_REAL, IDLE_WAIT_S, IDLE_WAIT_S)
        try:
            yield
        except _WaitInterruptedError:
            pass
        finally:
            self._is_waiting = False
            if self._has_handlers and self.cause is None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Let nothing interrupt the block, even inside an interruptible one: half a state is useless."""
        is_waiting, self._is_waiting = self._is_waiting, False
        try:
            yield
        finally:
            self._is_waiting = is_waiting

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.request("SIGTERM")
        signal.setitimer(signal.ITIMER_REAL, IDLE_WAIT_S, IDLE_WAIT_S)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_waiting and (self.cause is not None or self._is_pointless()):
            raise _WaitInterruptedError
