"""Ends of instances, which no signal breaks off: what one prints meanwhile, and how a third Ctrl-C leaves.

A signal's handler only queues it. A thread of its own reads the store for what is printed: the main thread,
which the handler has stopped, may hold the store's lock.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Info, Warned

LEAVE_AT = 3
"""The number of Ctrl-C during an end that leaves it."""

READ_S = 1.0
"""Signals within this after a message count as the one before it: it has not been read yet."""

DESCRIBE_S = 3.0
"""The longest wait for a description: the price of a lost request is asked of EC2, which may not answer."""

LATE_S = 2.0
"""After an end that was the last thing to do, signals change nothing for this long: errors are reported."""

_TIMES = {1: "interrupt again", 2: "interrupt twice more", 3: "press Ctrl-C three times"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWords:
    """An end in words.

    Args:
        doing: What goes on, as in "ending 3 instances of digits".
        otherwise: What leaving it means, as in "to leave them to their own end at 14:05 UTC".
        left: What may be left, with its price and the command that ends it.
    """

    doing: str
    otherwise: str
    left: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What is to be ended.

    Args:
        subject: Its name; of nested ends with one name, the inner one is described.
        command: Ends what is left.
        emit: Takes the messages.
        describe: Called in another thread.
    """

    subject: str
    command: str
    emit: Emit
    describe: Callable[[], EndWords]

    def emit_state(self, presses: int) -> None:
        """Emit what goes on, and what as many more Ctrl-C would do."""
        words = self._words()
        self.emit(Info(message=f"{words.doing}, a few seconds; {_TIMES[presses]} {words.otherwise}"))

    def emit_left(self) -> None:
        """Emit what is left, where a Ctrl-C has left the end."""
        self.emit(Warned(message=self._words().left))

    def _words(self) -> EndWords:
        """Return the description; one without a price where the store or EC2 does not answer."""
        answers: SimpleQueue[EndWords | str] = SimpleQueue()

        def answer() -> None:
            try:
                answers.put(self.describe())
            except DlcloudError as error:
                answers.put(error.message)

        threading.Thread(target=answer, name="dlcloud-describe", daemon=True).start()
        try:
            words = answers.get(timeout=DESCRIBE_S)
        except Empty:
            words = "EC2 does not answer"
        if isinstance(words, EndWords):
            return words
        unknown = f"{self.subject}: something may still be up, and its price is unknown ({words})"
        return EndWords(
            doing=f"ending {self.subject}",
            otherwise=f"to leave it, at an unknown price ({words})",
            left=f"{unknown}; {self.command} ends it",
        )


class Ends:
    """The ends that the threads of a process owe, and those that have begun.

    Args:
        leave: Raises in the main thread; called after what is left was emitted.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._owed: dict[int, list[End]] = {}
        self._begun: dict[int, list[End]] = {}
        self._lock = threading.Lock()
        self._signals: SimpleQueue[tuple[int, float] | None] = SimpleQueue()
        self._watcher: threading.Thread | None = None
        self._settled_at: float | None = None
        self.left_at: float | None = None
        self.has_begun = False

    def take(self, number: int, *, is_interrupted: bool) -> bool:
        """Answer a signal if it may not raise; safe to call in a signal's handler.

        Args:
            number: The signal.
            is_interrupted: An earlier one has raised: other threads are on their way to the ends they owe.
        """
        now = time.monotonic()
        if any(since is not None and now < since + LATE_S for since in (self._settled_at, self.left_at)):
            return True
        if self.left_at is not None:
            return False
        if not self._begun.get(_main_thread()) and not (is_interrupted and self._of_others()):
            return False
        self._signals.put((number, now))
        return True

    @property
    def is_left(self) -> bool:
        """True if a Ctrl-C has left the ends, which were emitted."""
        return self.left_at is not None

    @property
    def are_owed(self) -> bool:
        """True if the main thread is to end something when what it does now ends."""
        return bool(self._owed.get(_main_thread()))

    @property
    def are_under_way(self) -> bool:
        """True if the end of something has begun, in any thread, or other threads owe one."""
        return any([*self._begun.values()]) or bool(self._of_others())

    @contextmanager
    def owing(self, end: End) -> Iterator[None]:
        """State that something is ended when the block ends, whatever happens in it."""
        with self._listing(self._owed, end):
            yield

    @contextmanager
    def unbroken(self, end: End) -> Iterator[None]:
        """Let no signal break the block off."""
        self.has_begun = True
        with self._listing(self._begun, end):
            yield

    def settle(self) -> None:
        """State that the command has nothing left to do but to report: late signals are ignored."""
        if threading.get_ident() == _main_thread():
            self._settled_at = time.monotonic()

    def begin_command(self) -> None:
        """Forget what an earlier command of this process did."""
        self._settled_at, self.left_at, self.has_begun = None, None, False

    @contextmanager
    def _listing(self, lists: dict[int, list[End]], end: End) -> Iterator[None]:
        ends = lists.setdefault(threading.get_ident(), [])
        try:
            ends.append(end)
            self._start_watcher()
            yield
        finally:
            ends[:] = [other for other in ends if other is not end]
            if not self.are_under_way:
                self._signals.put(None)

    def _start_watcher(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="dlcloud-ends", daemon=True)
                self._watcher.start()

    def _of_others(self) -> list[End]:
        """Return what threads other than the main one owe or end, the inner one of each."""
        threads = {*self._owed, *self._begun} - {_main_thread()}
        lists = [self._begun.get(thread) or self._owed.get(thread) for thread in threads]
        return [ends[-1] for ends in lists if ends]

    def _current(self) -> list[End]:
        return [*self._begun.get(_main_thread(), [])[-1:], *self._of_others()]

    def _all(self) -> list[End]:
        """Return every end of every thread, one for each subject: what a Ctrl-C that leaves them leaves."""
        lists = [*self._owed.values(), *self._begun.values()]
        return [*{end.subject: end for ends in lists for end in ends}.values()]

    def _watch(self) -> None:
        presses, emitted_at = 0, 0.0
        while True:
            taken = self._signals.get()
            if taken is None:
                presses, emitted_at = 0, 0.0
                continue
            number, at = taken
            ends = self._current()
            if self.is_left or not ends or (emitted_at and at < emitted_at + READ_S):
                continue
            presses += number == signal.SIGINT
            if presses >= LEAVE_AT and emitted_at:
                for end in self._all():
                    end.emit_left()
                self.left_at = time.monotonic()
                self._leave()
                continue
            for end in ends:
                end.emit_state(max(1, LEAVE_AT - presses))
            emitted_at = time.monotonic()


def _main_thread() -> int:
    return threading.main_thread().ident or 0
