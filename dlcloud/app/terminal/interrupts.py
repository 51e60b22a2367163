"""Ctrl-C and the other signals that end a command, so that no library can lose one.

Python raises KeyboardInterrupt wherever the main thread is, in a function that a library calls, too. Some
libraries take any exception of such a function for an answer: pydantic drops one that is raised while a model
is serialized, and Python itself one in `__del__`. And `contextlib` loses the rest of a context manager when
one is raised in the `__exit__` that was about to resume it.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from dlcloud.app.terminal.ends import Ends

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_S = 0.05
"""A dropped interrupt is raised again after this: by then the library has returned."""

SAME_PRESS_S = 0.2
"""A signal within this after one that has raised is dropped: it would hit the blocks that clean up."""

_is_running = False
_is_holding = False
_raised_at: float | None = None
_pending: int | None = None
_before: dict[signal.Signals, Any] = {}


class Interrupt(KeyboardInterrupt):
    """A signal has ended the command; raised again if it is dropped before `handled` is set."""

    handled = False

    def __del__(self) -> None:
        if _is_running and not self.handled:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


class EndLeftError(Interrupt):
    """Ctrl-C was pressed a third time during an end: what is left was emitted."""


def _leave_end() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


ends = Ends(_leave_end)
"""Those of this process; during one, no signal raises."""


@contextmanager
def interrupts(*, in_library: bool = False) -> Iterator[None]:
    """Raise `Interrupt` on Ctrl-C inside the block, again if it is dropped.

    A process that was started to ignore Ctrl-C goes on ignoring it. After an end of instances the handlers
    stay, so that a late signal does not change the exit status; not `in_library`, which gives all handlers
    back to the program that called it. In a thread other than the main one, signals stay as they are.
    """
    global _is_running, _raised_at, _pending  # noqa: PLW0603 a signal's handler belongs to the process
    if not _is_main_thread():
        yield
        return
    ends.begin_command()
    _raised_at = _pending = None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise_on(signal.SIGINT)
    on_alarm = signal.signal(signal.SIGALRM, _on_alarm)
    on_dropped, sys.unraisablehook = sys.unraisablehook, _print_dropped
    _is_running = True
    try:
        yield
    finally:
        if ends.has_begun:
            ends.settle()
        _is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = on_dropped
        while _before and (in_library or not ends.has_begun):
            signal.signal(*_before.popitem())
        if in_library:
            signal.signal(signal.SIGALRM, on_alarm or signal.SIG_DFL)


def raise_on(*numbers: signal.Signals) -> None:
    """Raise `Interrupt` on these signals, until `interrupts` ends; what nohup lets ignore stays ignored.

    Only the main thread has signals: in another one, nothing changes.
    """
    if not _is_main_thread():
        return
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before.setdefault(number, signal.signal(number, _on_signal) or signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def holding() -> Iterator[None]:
    """Raise no `Interrupt` inside the block, but soon after it: then what it has begun is known."""
    global _is_holding  # noqa: PLW0603 a signal's handler belongs to the process
    _is_holding = True
    try:
        yield
    finally:
        _is_holding = False


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _raised_at, _pending  # noqa: PLW0603 a signal's handler belongs to the process
    if ends.take(number, is_interrupted=_raised_at is not None):
        return
    if not _is_running:  # the command is over, and what comes after it does not end
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        return
    now = time.monotonic()
    if _raised_at is not None and now < _raised_at + SAME_PRESS_S:
        return
    if _is_holding or (ends.are_owed and _is_leaving_a_block(frame)):
        _pending = number
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)  # one that was dropped before is this one
    _raised_at, _pending = now, None
    raise Interrupt


def _on_alarm(_: int, frame: FrameType | None) -> None:
    """Leave an end, or answer a signal that had to wait, or that a library has dropped."""
    global _raised_at  # noqa: PLW0603 a signal's handler belongs to the process
    if ends.left_at is not None:
        if ends.are_under_way:
            raise EndLeftError
        ends.left_at = None  # it has ended meanwhile
    elif _is_running:
        if _pending is None:
            _raised_at = None  # it was dropped
        _on_signal(_pending or signal.SIGINT, frame)


def _is_leaving_a_block(frame: FrameType | None) -> bool:
    """True in the `__exit__` of a context manager that is a generator, or in what it calls.

    Raised there, before the generator is resumed, an exception keeps it from ending what it is to end.
    """
    while frame is not None:
        if frame.f_code is _EXIT:
            return True
        frame = frame.f_back
    return False


_EXIT = type(interrupts()).__exit__.__code__


def _print_dropped(dropped: "UnraisableHookArgs") -> None:
    if not isinstance(dropped.exc_value, Interrupt):
        sys.__unraisablehook__(dropped)
