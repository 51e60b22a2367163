"""Progress on stderr, drawn from events: lines where nobody watches, a live status on a terminal."""

import sys
import textwrap
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from dlcloud.core.events import Event, Progress, StageDone, StageStarted, Warned

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PROGRESS_EVERY_S = 10.0
SECONDS_BELOW_MINUTES = 2
INDENT = " " * 11
CLOCK_WIDTH = len("0:00:00")
MOST_LINES = 8
"""With more instances than this at work, the others go on unseen: a screen is not a log."""


class Console(Protocol):
    """Draws events."""

    def emit(self, event: Event) -> None:
        """Draw one; several threads may."""


def console_for(stream: TextIO) -> "AbstractContextManager[Console]":
    """Return the console for a stream: live where it is a terminal."""
    return LiveConsole() if stream.isatty() else PlainConsole(stream)


class PlainConsole(AbstractContextManager["PlainConsole"]):
    """One line an event, progress at most every ten seconds an instance; for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._told: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def emit(self, event: Event) -> None:
        """Write a line."""
        with self._lock:
            now = time.monotonic()
            if isinstance(event, Progress) and now - self._told.get(event.instance_id, 0) < PROGRESS_EVERY_S:
                return
            if isinstance(event, Progress):
                self._told[event.instance_id] = now
            print(f"{now - self._started:7.1f} s  {line_of(event)}", file=self._stream, flush=True)


class LiveConsole:
    """A line for what is done, and below it, for what goes on, a spinner with a clock an instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._going_on: dict[str, TaskID] = {}
        self._display: RichProgress | None = None

    def __enter__(self) -> Self:
        """Take the terminal."""
        # 0.1 s of imports that only a terminal needs
        from rich.console import Console as RichConsole
        from rich.progress import Progress as RichProgress
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        # Where it is too narrow for all, what goes on is cut off, not the clock.
        clock = TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=CLOCK_WIDTH))
        spinner = SpinnerColumn(table_column=Column(no_wrap=True, min_width=1))
        columns = (spinner, clock, TextColumn("{task.description}", markup=False))
        console = RichConsole(stderr=True, highlight=False, markup=False)
        self._display = RichProgress(*columns, console=console, transient=True, redirect_stdout=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        if self._display is not None:
            self._display.stop()

    def emit(self, event: Event) -> None:
        """Draw one event."""
        if self._display is None:
            return
        with self._lock:
            if isinstance(event, StageStarted | Progress):
                self._go_on(self._display, event)
                return
            if isinstance(event, StageDone):
                self._end(self._display, event)
            elapsed = time.monotonic() - self._started
            console = self._display.console
            console.print(broken(f"{elapsed:7.1f} s  {line_of(event)}", console.width), soft_wrap=True)

    def _go_on(self, display: "RichProgress", event: Event) -> None:
        display.start()
        task = self._going_on.get(event.instance_id)
        if task is None or isinstance(event, StageStarted):
            self._end(display, event, stop=False)
            visible = len(self._going_on) < MOST_LINES
            self._going_on[event.instance_id] = display.add_task(line_of(event), total=None, visible=visible)
        else:
            display.update(task, description=line_of(event))

    def _end(self, display: "RichProgress", event: Event, *, stop: bool = True) -> None:
        task = self._going_on.pop(event.instance_id, None)
        if task is not None:
            display.remove_task(task)
        if stop and not self._going_on:
            display.stop()


def line_of(event: Event) -> str:
    """Return an event as one line."""
    where = f"{event.instance_id}  " if event.instance_id else ""
    match event:
        case StageDone():
            return f"{where}done in {event.seconds:.1f} s: {event.message}"
        case StageStarted():
            return f"{where}{event.message} ..."
        case Warned():
            return f"{where}warning: {event.message}"
        case Progress() if event.total:
            # First what is cut off last where the line is too long for the terminal.
            left = f", about {time_left(event.remaining_s)} left" if event.remaining_s else ""
            return f"{where}{event.done or 0:g} of {event.total:g}{left}: {event.message}"
        case _:
            return f"{where}{event.message}"


def time_left(seconds: float) -> str:
    """Return a time as people say it: `40 s`, `12 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if minutes < SECONDS_BELOW_MINUTES:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def broken(text: str, width: int) -> str:
    """Break lines that are wider than the terminal between words; what follows is indented."""
    lines = [
        textwrap.wrap(line, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join("\n".join(line) for line in lines)
