"""What a signal may do: interrupt a command, but never a termination that runs.

1. `interrupts` surrounds the whole command. A Ctrl-C, or a SIGTERM or SIGHUP after `raise_on`, raises
   `Interrupt` in the main thread, which unwinds the command as any error does.
2. A block that creates what is billed states so with `terminations.pending`: until it ends, something must be
   terminated however it ends.
3. A block that terminates is inside `terminations.running`: in it no signal raises. The first Ctrl-C prints
   what is happening and what leaving it would cost. The third one prints what is left, with its price and the
   command that terminates it, and raises `TerminationAbandonedError`.

`app.termination` uses this for clusters. What must never happen: that a signal is lost, or that it interrupts
a termination without a word. Both are harder than they look:

- Python raises KeyboardInterrupt wherever the main thread is, in a function that a library calls, too. Some
  libraries take any exception of such a function for an answer: pydantic drops one that is raised while a
  model is serialized, and Python itself one in `__del__`. A dropped `Interrupt` is therefore raised again.
- `contextlib` loses the rest of a context manager if an exception is raised in the `__exit__` that was about
  to resume it. A signal that comes there waits while a termination is pending.
- The main thread, which the handler has stopped, may hold the store's lock. The handler only queues the
  signal, and another thread reads the store for what is printed.
- The threads of a `bench` have their own terminations. The main thread, which alone gets signals, waits
  for them.

`--help` imports this module: it must stay light.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Info, Warned

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

ABANDON_AT = 3
"""The number of Ctrl-C during a termination that abandons it."""

READ_S = 1.0
"""Signals within this after a message count as the one before it: the message is not read yet."""

DESCRIBE_S = 3.0
"""The longest wait for a description: the price of a lost request is asked of EC2, which may not answer."""

LATE_S = 2.0
"""After a termination that was the last thing to do, signals change nothing for this long."""

AGAIN_S = 0.05
"""A dropped interrupt is raised again after this: by then the library has returned."""

SAME_PRESS_S = 0.2
"""A signal within this after one that has raised is dropped: it would hit the blocks that clean up."""

_PRESSES = {1: "interrupt again", 2: "interrupt twice more", 3: "press Ctrl-C three times"}


class Interrupt(KeyboardInterrupt):
    """A signal has ended the command; raised again if it is dropped before `handled` is set."""

    handled = False

    def __del__(self) -> None:
        if _is_running and not self.handled:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


class TerminationAbandonedError(Interrupt):
    """Ctrl-C was pressed a third time during a termination: what is left was emitted."""


@contextmanager
def interrupts(*, in_library: bool = False) -> Iterator[None]:
    """Raise `Interrupt` on Ctrl-C inside the block, again if it is dropped.

    A process that was started to ignore Ctrl-C continues to ignore it. After a termination the handlers stay,
    so that a late signal does not change the exit status; with `in_library`, the program that called gets all
    its handlers back. In a thread other than the main one, signals stay as they are.
    """
    global _is_running, _raised_at, _pending  # noqa: PLW0603 a signal's handler belongs to the process
    if threading.get_ident() != _main_thread():
        yield
        return
    terminations.begin_command()
    _raised_at = _pending = None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise_on(signal.SIGINT)
    on_alarm = signal.signal(signal.SIGALRM, _on_alarm)
    on_dropped, sys.unraisablehook = sys.unraisablehook, _print_dropped
    _is_running = True
    try:
        yield
    finally:
        if terminations.has_begun:
            terminations.settle()
        _is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = on_dropped
        if in_library or not terminations.has_begun:
            for number, handler in _before.items():
                signal.signal(number, handler)
            _before.clear()
        if in_library:
            signal.signal(signal.SIGALRM, on_alarm or signal.SIG_DFL)


def raise_on(*numbers: signal.Signals) -> None:
    """Raise `Interrupt` on these signals, until `interrupts` ends; what nohup lets ignore stays ignored.

    Only the main thread has signals: in another one, nothing changes.
    """
    if threading.get_ident() != _main_thread():
        return
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before.setdefault(number, signal.signal(number, _on_signal) or signal.SIG_DFL)


def is_interrupted() -> bool:
    """True once a signal has ended the command, whose main thread is on its way out."""
    return _raised_at is not None


@contextmanager
def holding() -> Iterator[None]:
    """Raise no `Interrupt` inside the block, but soon after it, when what it has created is known."""
    global _is_holding  # noqa: PLW0603 a signal's handler belongs to the process
    _is_holding = True
    try:
        yield
    finally:
        _is_holding = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationTexts:
    """What is printed about a termination.

    Args:
        doing: What is happening, as in "terminating 3 instances of digits".
        otherwise: What abandoning means, as in "to leave them until they terminate themselves at 14:05 UTC".
        left: What may be left, with its price and the command that terminates it.
    """

    doing: str
    otherwise: str
    left: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """Something that must be terminated.

    Args:
        subject: Its name; of nested terminations with one name, the inner one is described.
        command: Terminates what is left.
        emit: Takes the messages.
        describe: Called in another thread.
    """

    subject: str
    command: str
    emit: Emit
    describe: Callable[[], TerminationTexts]

    def emit_state(self, presses: int) -> None:
        """Emit what is happening, and what this many more Ctrl-C would do."""
        texts = self._texts()
        self.emit(Info(message=f"{texts.doing}, a few seconds; {_PRESSES[presses]} {texts.otherwise}"))

    def emit_left(self) -> None:
        """Emit what is left, when a Ctrl-C has abandoned the termination."""
        self.emit(Warned(message=self._texts().left))

    def _texts(self) -> TerminationTexts:
        """Return the description; one without a price if the store or EC2 does not answer."""
        answers: SimpleQueue[TerminationTexts | str] = SimpleQueue()

        def answer() -> None:
            try:
                answers.put(self.describe())
            except DlcloudError as error:
                answers.put(error.message)

        threading.Thread(target=answer, name="dlcloud-describe", daemon=True).start()
        try:
            texts = answers.get(timeout=DESCRIBE_S)
        except Empty:
            texts = "EC2 does not answer"
        if isinstance(texts, TerminationTexts):
            return texts
        unknown = f"{self.subject}: something may still be up, and its price is unknown ({texts})"
        return TerminationTexts(
            doing=f"terminating {self.subject}",
            otherwise=f"to leave it, at an unknown price ({texts})",
            left=f"{unknown}; {self.command} terminates it",
        )


class Terminations:
    """The terminations of a process by thread: those that are pending, and those that run."""

    def __init__(self) -> None:
        self._pending: dict[int, list[Termination]] = {}
        self._running: dict[int, list[Termination]] = {}
        self._lock = threading.Lock()
        self._signals: SimpleQueue[tuple[int, float] | None] = SimpleQueue()
        self._watcher: threading.Thread | None = None
        self._settled_at: float | None = None
        self.abandoned_at: float | None = None
        self.has_begun = False

    @contextmanager
    def pending(self, termination: Termination) -> Iterator[None]:
        """State that something is terminated when the block ends, whatever happens in it."""
        with self._listing(self._pending, termination):
            yield

    @contextmanager
    def running(self, termination: Termination) -> Iterator[None]:
        """Let no signal interrupt the block."""
        self.has_begun = True
        with self._listing(self._running, termination):
            yield

    @property
    def are_abandoned(self) -> bool:
        """True if a Ctrl-C has abandoned what was pending and running, all of which was emitted."""
        return self.abandoned_at is not None

    @property
    def are_pending(self) -> bool:
        """True if the main thread terminates something when its present block ends."""
        return bool(self._pending.get(_main_thread()))

    @property
    def are_under_way(self) -> bool:
        """True if one runs in any thread, or is pending in a thread other than the main one."""
        return any([*self._running.values()]) or bool(self._of_others())

    def settle(self) -> None:
        """State that the command has nothing left to do but to report: late signals are ignored."""
        if threading.get_ident() == _main_thread():
            self._settled_at = time.monotonic()

    def begin_command(self) -> None:
        """Forget what an earlier command of this process did."""
        self._settled_at, self.abandoned_at, self.has_begun = None, None, False

    def answer(self, number: int, *, is_interrupted: bool) -> bool:
        """Answer a signal if it may not raise; safe to call in a signal's handler.

        Args:
            number: The signal.
            is_interrupted: An earlier one has raised: other threads are on their way to their terminations.
        """
        now = time.monotonic()
        if any(since is not None and now < since + LATE_S for since in (self._settled_at, self.abandoned_at)):
            return True
        if self.are_abandoned:
            return False
        if not self._running.get(_main_thread()) and not (is_interrupted and self._of_others()):
            return False
        self._signals.put((number, now))
        return True

    @contextmanager
    def _listing(self, lists: dict[int, list[Termination]], termination: Termination) -> Iterator[None]:
        own = lists.setdefault(threading.get_ident(), [])
        try:
            own.append(termination)
            self._start_watcher()
            yield
        finally:
            own[:] = [other for other in own if other is not termination]
            if not self.are_under_way:
                self._signals.put(None)

    def _start_watcher(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="dlcloud-terminations", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        """Print for each signal that was queued, in another thread."""
        presses, emitted_at = 0, 0.0
        while True:
            queued = self._signals.get()
            if queued is None:  # all have ended
                presses, emitted_at = 0, 0.0
                continue
            number, at = queued
            current = [*self._running.get(_main_thread(), [])[-1:], *self._of_others()]
            if self.are_abandoned or not current or (emitted_at and at < emitted_at + READ_S):
                continue
            presses += number == signal.SIGINT
            if presses >= ABANDON_AT and emitted_at:
                self._abandon()
                continue
            for termination in current:
                termination.emit_state(max(1, ABANDON_AT - presses))
            emitted_at = time.monotonic()

    def _abandon(self) -> None:
        """Emit what is left, one message for each subject, and let `_on_alarm` raise."""
        lists = [*self._pending.values(), *self._running.values()]
        for termination in {one.subject: one for ones in lists for one in ones}.values():
            termination.emit_left()
        self.abandoned_at = time.monotonic()
        signal.pthread_kill(_main_thread(), signal.SIGALRM)

    def _of_others(self) -> list[Termination]:
        """Return what is pending or runs in threads other than the main one, the inner one of each."""
        threads = {*self._pending, *self._running} - {_main_thread()}
        lists = [self._running.get(thread) or self._pending.get(thread) for thread in threads]
        return [ones[-1] for ones in lists if ones]


def _main_thread() -> int:
    return threading.main_thread().ident or 0


terminations = Terminations()
"""Those of this process."""


# The state of the handlers, which belong to the process.
_is_running = False
_is_holding = False
_raised_at: float | None = None
_pending: int | None = None
_before: dict[signal.Signals, Any] = {}


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _raised_at, _pending  # noqa: PLW0603 a signal's handler belongs to the process
    if terminations.answer(number, is_interrupted=_raised_at is not None):
        return
    if not _is_running:  # the command is over, and what comes after it does not end
        before = _before.get(signal.Signals(number), signal.SIG_DFL)
        signal.signal(number, signal.SIG_DFL if before is signal.default_int_handler else before)
        signal.raise_signal(number)
        return
    now = time.monotonic()
    if _raised_at is not None and now < _raised_at + SAME_PRESS_S:
        return
    if _is_holding or (terminations.are_pending and _is_leaving_a_block(frame)):
        _pending = number
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)  # one that was dropped before is this one
    _raised_at, _pending = now, None
    raise Interrupt


def _on_alarm(_: int, frame: FrameType | None) -> None:
    """Abandon terminations, or answer a signal that had to wait, or that a library has dropped."""
    global _raised_at  # noqa: PLW0603 a signal's handler belongs to the process
    if terminations.abandoned_at is not None:
        if terminations.are_under_way:
            raise TerminationAbandonedError
        terminations.abandoned_at = None  # it has ended meanwhile
    elif _is_running:
        if _pending is None:
            _raised_at = None  # it was dropped
        _on_signal(_pending or signal.SIGINT, frame)


def _is_leaving_a_block(frame: FrameType | None) -> bool:
    """True in the `__exit__` of a context manager that is a generator, or in what it calls.

    Raised there, before the generator is resumed, an exception keeps it from terminating what is pending.
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
