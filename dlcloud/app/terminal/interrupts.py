"""Ctrl-C and the other signals that end a command, so that no library can lose one.

Python raises KeyboardInterrupt wherever the main thread is, in a function that a library calls, too. Some
libraries take any exception of such a function for an answer: pydantic drops one that is raised while a model
is serialized, and Python itself one in `__del__`.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_S = 0.05
"""A dropped interrupt is raised again after this: by then the library has returned."""

_is_running = False
_before: dict[signal.Signals, Any] = {}


class Interrupt(KeyboardInterrupt):
    """A signal has ended the command; raised again if it is dropped before `handled` is set."""

    handled = False

    def __del__(self) -> None:
        if _is_running and not self.handled:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Interrupt` on Ctrl-C inside the block, again if it is dropped.

    A process that was started to ignore Ctrl-C goes on ignoring it.
    """
    global _is_running  # noqa: PLW0603 a signal's handler belongs to the process
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise_on(signal.SIGINT)
    signal.signal(signal.SIGALRM, _raise_again)
    on_dropped, sys.unraisablehook = sys.unraisablehook, _print_dropped
    _is_running = True
    try:
        yield
    finally:
        _is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = on_dropped
        while _before:
            signal.signal(*_before.popitem())


def raise_on(*numbers: signal.Signals) -> None:
    """Raise `Interrupt` on these signals, until `interrupts` ends."""
    for number in numbers:
        _before.setdefault(number, signal.signal(number, _raise) or signal.SIG_DFL)


def _raise(*_: object) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0)  # one that was dropped before is this one
    raise Interrupt


def _raise_again(*_: object) -> None:
    if _is_running:
        raise Interrupt


def _print_dropped(dropped: "UnraisableHookArgs") -> None:
    if not isinstance(dropped.exc_value, Interrupt):
        sys.__unraisablehook__(dropped)
