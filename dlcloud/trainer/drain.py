"""The wish that a worker leaves after its step: a signal, or the controller's file."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

DRAINED = 10
"""Exit status of a worker that left because it was asked to; 0 is one whose run is done."""

IDLE_WAIT_S = 1.0
"""A wait for other workers that lasts longer may be broken off: no step is under way in it."""


class DrainedError(SystemExit):
    """The worker has left; ends a script that does not catch it with status DRAINED."""

    def __init__(self) -> None:
        super().__init__(DRAINED)


class _WaitBrokenError(BaseException):
    """Breaks off a wait; no Exception, so that no library on the way takes it for a fault."""


@dataclass(slots=True)
class Drain:
    """Whether to leave, and why."""

    cause: str | None = None
    _waiting: bool = field(default=False, init=False)
    _heard: bool = field(default=False, init=False)
    _useless: Callable[[], bool] = field(default=lambda: False, init=False)

    def request(self, cause: str) -> None:
        """Leave after this step; the first cause counts."""
        self.cause = self.cause or cause

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGTERM ask for it while the block lasts."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._heard = True
        try:
            yield
        finally:
            self._heard = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self, useless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Let a drain break off the block once it has lasted too long; it is left quietly then.

        Args:
            useless: Tells whether there is nothing to wait for any more, drain or not.
        """
        self._waiting, self._useless = True, useless
        if self._heard:
            signal.setitimer(signal.ITIMER_REAL, IDLE_WAIT_S, IDLE_WAIT_S)
        try:
            yield
        except _WaitBrokenError:
            pass
        finally:
            self._waiting = False
            if self._heard and self.cause is None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let nothing break off the block, which a wait may have around it: half a state is none."""
        waiting, self._waiting = self._waiting, False
        try:
            yield
        finally:
            self._waiting = waiting

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.request("SIGTERM")
        signal.setitimer(signal.ITIMER_REAL, IDLE_WAIT_S, IDLE_WAIT_S)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._waiting and (self.cause is not None or self._useless()):
            raise _WaitBrokenError
