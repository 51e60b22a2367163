"""The last line that a program printed, beside its progress, while it runs."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dlcloud.launch.remote_jobs import HARNESS_PROGRESS
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Progress

LONGEST_LINE = 200
"""Characters of a line that are shown."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LiveOutput:
    """Joins the progress of one run with the last line of its program; safe to call from several threads."""

    emit: Emit
    instance_id: str
    _progress: Progress | None = field(init=False, default=None)
    _line: str = field(init=False, default="")
    _is_over: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def show(self, progress: Progress) -> None:
        """Emit progress; the line of a part that has ended is not shown beside the next."""
        with self._lock:
            if self._progress is not None and self._progress.message != progress.message:
                self._line = ""
            self._progress = progress
            self._emit()

    def follow(self, stream: Callable[[], Iterable[bytes]]) -> None:
        """Read the program's output in a thread of its own, which ends with the stream.

        Only the display depends on it: a connection that breaks ends it, and the run goes on.
        """
        name = f"output of {self.instance_id}"
        threading.Thread(target=self._read, args=(stream,), name=name, daemon=True).start()

    def feed(self, piece: bytes) -> None:
        """Show the last line of a piece of output; a carriage return ends one, too."""
        text = piece.decode("utf-8", "replace").replace("\r", "\n")
        lines = [
            line.strip() for line in text.split("\n") if line.strip() and not HARNESS_PROGRESS.match(line)
        ]
        if lines:
            with self._lock:
                self._line = (
                    lines[-1] if len(lines[-1]) <= LONGEST_LINE else f"{lines[-1][: LONGEST_LINE - 1]}…"
                )
                self._emit()

    def close(self) -> None:
        """Show nothing more: the run has ended."""
        with self._lock:
            self._is_over = True

    def _read(self, stream: Callable[[], Iterable[bytes]]) -> None:
        try:
            for piece in stream():
                self.feed(piece)
        except (DlcloudError, OSError, EOFError) as error:
            log.info("%s: its output is not shown any more: %s", self.instance_id, error)

    def _emit(self) -> None:
        if self._is_over:
            return
        progress = self._progress or Progress(message="", instance_id=self.instance_id)
        message = ": ".join(part for part in (progress.message, self._line) if part)
        self.emit(replace(progress, message=message))
