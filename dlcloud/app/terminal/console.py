"""Progress on stderr, drawn from events: a live display on a terminal, lines elsewhere.

A closed terminal, a full disk or a pipe without a reader must not stop a command that ends instances: what
cannot be printed is dropped.
"""

import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from dlcloud.model.events import Event, Progress, StageDone, StageStarted, Warned
from dlcloud.model.untrusted import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PROGRESS_EVERY_S = 10.0
SECONDS_BELOW_MINUTES = 2
INDENT = " " * 11
CLOCK_WIDTH = len("0:00:00")
SPINNER_WIDTH = CLOCK_WIDTH + 4
"""Of a live display: the spinner, the clock and what separates them."""
WAIT = "a wait"
"""The key of the spinner of waits among those of instances."""
MOST_LINES = 8
"""The most instances that are displayed at a time."""


class Console(Protocol):
    """Draws events; safe to call from several threads."""

    def emit(self, event: Event) -> None: ...

    def suspended(self) -> "AbstractContextManager[None]":
        """Leave the terminal to something else that asks there."""

    def begin_wait(self, message: str) -> None:
        """Show on a terminal that an answer is awaited; waits may overlap."""

    def end_wait(self) -> None:
        """Show a wait no more."""

    def waiting(self, message: str) -> "AbstractContextManager[None]":
        """Show on a terminal what the block waits for."""


def console_for(stream: TextIO) -> "AbstractContextManager[Console]":
    """Return the console for a stream: live where it is a terminal."""
    return LiveConsole() if stream.isatty() else PlainConsole(stream)


class Waits:
    """Waits that need no line."""

    def begin_wait(self, message: str) -> None:
        """Show nothing: there is no terminal."""

    def end_wait(self) -> None:
        """Show nothing."""

    @contextmanager
    def waiting(self, message: str) -> Iterator[None]:
        """Show on a terminal what the block waits for."""
        self.begin_wait(message)
        try:
            yield
        finally:
            self.end_wait()


class PlainConsole(Waits, AbstractContextManager["PlainConsole"]):
    """One line per event, for logs and pipes; progress at most every ten seconds per instance."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._printed_at: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        pass  # nothing is open

    def emit(self, event: Event) -> None:
        with self._lock:
            now = time.monotonic()
            if (
                isinstance(event, Progress)
                and now - self._printed_at.get(event.instance_id, 0) < PROGRESS_EVERY_S
            ):
                return
            if isinstance(event, Progress):
                self._printed_at[event.instance_id] = now
            with _drop_unprintable():
                print(f"{now - self._started:7.1f} s  {line_of(event)}", file=self._stream, flush=True)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Print nothing meanwhile; events wait."""
        with self._lock:
            yield


class SilentConsole(Waits):
    """Prints nothing."""

    def emit(self, event: Event) -> None:
        """Drop an event."""

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the terminal to something else that asks there."""
        yield


class LiveConsole(Waits):
    """A line per finished event, and below them a spinner with a clock per instance at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._tasks: dict[str, TaskID] = {}
        self._waits = 0
        self._display: RichProgress | None = None

    def __enter__(self) -> Self:
        # 0.1 s of imports that only a terminal needs
        from rich.console import Console as RichConsole
        from rich.progress import Progress as RichProgress
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        # On a narrow terminal the description is cut off, not the clock.
        clock = TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=CLOCK_WIDTH))
        spinner = SpinnerColumn(table_column=Column(no_wrap=True, min_width=1))
        columns = (spinner, clock, TextColumn("{task.description}", markup=False))
        console = RichConsole(stderr=True, highlight=False, markup=False)
        console.on_broken_pipe = lambda: None  # type: ignore[method-assign]  # it would end the process
        self._display = RichProgress(*columns, console=console, transient=True, redirect_stdout=False)
        return self

    def __exit__(self, *_: object) -> None:
        with _drop_unprintable():
            if self._display is not None:
                self._display.stop()

    def emit(self, event: Event) -> None:
        if self._display is None:
            return
        with self._lock, _drop_unprintable():
            if isinstance(event, StageStarted | Progress):
                self._show(self._display, event)
                return
            if isinstance(event, StageDone):
                self._end(self._display, event)
            elapsed = time.monotonic() - self._started
            console = self._display.console
            console.print(wrap(f"{elapsed:7.1f} s  {line_of(event)}", console.width), soft_wrap=True)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the display off the terminal; events wait."""
        with self._lock:
            with _drop_unprintable():
                if self._display is not None:
                    self._display.stop()
            try:
                yield
            finally:
                with _drop_unprintable():
                    if self._display is not None and self._tasks:
                        self._display.start()

    def begin_wait(self, message: str) -> None:
        """Show a spinner, unless a stage has one."""
        with self._lock, _drop_unprintable():
            self._waits += 1
            if self._display is not None and not self._tasks:
                self._show(self._display, StageStarted(message=message, instance_id=WAIT))

    def end_wait(self) -> None:
        """Remove the spinner with the last wait: what is printed next has the terminal for itself."""
        with self._lock, _drop_unprintable():
            self._waits = max(0, self._waits - 1)
            if self._display is not None and not self._waits:
                self._end(self._display, StageDone(message="", instance_id=WAIT, seconds=0))

    def _show(self, display: "RichProgress", event: Event) -> None:
        display.start()
        task = self._tasks.get(event.instance_id)
        if task is None or isinstance(event, StageStarted):
            self._end(display, event, stop=False)
            visible = len(self._tasks) < MOST_LINES
            text = event.message if event.instance_id == WAIT else _text_of(event, display.console.width)
            self._tasks[event.instance_id] = display.add_task(text, total=None, visible=visible)
        else:
            display.update(task, description=_text_of(event, display.console.width))

    def _end(self, display: "RichProgress", event: Event, *, stop: bool = True) -> None:
        task = self._tasks.pop(event.instance_id, None)
        if task is not None:
            display.remove_task(task)
        if stop and not self._tasks:
            display.stop()


def _drop_unprintable() -> AbstractContextManager[None]:
    """Ignore that a stream takes nothing any more: OSError, or ValueError where it has been closed."""
    return suppress(OSError, ValueError)


def _text_of(event: Event, width: int) -> str:
    """Return what a live display shows of an event: its rows one below the other, or its line."""
    if not isinstance(event, Progress) or not event.rows:
        return line_of(event)
    wide = max(len(name) for name, _ in event.rows)
    lines = [f"{name:<{wide}}  {printable(value)}" for name, value in event.rows]
    return "\n".join(line[: width - SPINNER_WIDTH] for line in lines)


def line_of(event: Event) -> str:
    """Return an event as one line; what an instance put into it cannot control the terminal."""
    return printable(_line_of(event))


def _line_of(event: Event) -> str:
    where = f"{event.instance_id}  " if event.instance_id else ""
    match event:
        case StageDone():
            return f"{where}done in {event.seconds:.1f} s: {event.message}"
        case StageStarted():
            return f"{where}{event.message} ..."
        case Warned():
            return f"{where}warning: {event.message}"
        case Progress() if event.total:
            # A narrow terminal cuts the line off at its end: the counts come first.
            left = f", about {time_left(event.remaining_s)} left" if event.remaining_s else ""
            return f"{where}{event.done or 0:,.10g} of {event.total:,.10g}{left}: {event.message}"
        case _:
            return f"{where}{event.message}"


def time_left(seconds: float) -> str:
    """Return a duration for people: `40 s`, `12 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if minutes < SECONDS_BELOW_MINUTES:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def wrap(text: str, width: int) -> str:
    """Wrap lines that are wider than the terminal between words, with an indent."""
    lines = [
        textwrap.wrap(line, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join("\n".join(pieces) for pieces in lines)
