"""The processes of an agent: started, started again when they die, asked to leave, and never left behind."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .drain import DRAINED
from .records import Event, Records

STEADY_S = 60.0
"""A process that ran so long is started anew as if it were the first time."""

BACKOFF_S = 1.0


@dataclass(slots=True, kw_only=True)
class Child:
    """A process under supervision.

    Args:
        name: In the records.
        command: What is run.
        environment: The whole of it.
        records: Told of starts and ends.
        started, ended: The events that tell so.
        restarts: Times in a row that it is started again after a failure.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    records: Records
    restarts: int
    started: Event = Event.WORKER_STARTED
    ended: Event = Event.WORKER_ENDED
    asked: bool = field(default=False, init=False)
    status: int | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _start_at: float = field(default=0.0, init=False)
    _began: float = field(default=0.0, init=False)

    @property
    def over(self) -> bool:
        """Tell whether it has ended for good; `status` says how."""
        return self.status is not None

    def tend(self, now: float) -> None:
        """Start it if it is due, or take note of its end.

        Args:
            now: Seconds from any start, never backwards.
        """
        if self.over:
            return
        if self._process is None:
            if self.asked:
                self.status = DRAINED
            elif now >= self._start_at:
                self._start(now)
            return
        status = self._process.poll()
        if status is not None:
            self._process = None
            self._note_end(status, now)

    def ask_to_leave(self) -> None:
        """Send SIGTERM, once."""
        if not self.asked and self._process is not None:
            self._process.terminate()
        self.asked = True

    def kill(self) -> None:
        """End it now."""
        self.asked = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        if self._process is not None:
            self._process.wait()

    def _start(self, now: float) -> None:
        try:
            self._process = subprocess.Popen(list(self.command), env=dict(self.environment))
        except OSError as error:
            self.status = 1
            self.records.event(self.ended, f"cannot be started: {error}", process=self.name)
            return
        self._began = now
        self.records.event(
            self.started,
            "again" if self._failures else "first time",
            process=self.name,
            pid=self._process.pid,
        )

    def _note_end(self, status: int, now: float) -> None:
        killed = status == -signal.SIGKILL
        event = Event.KILLED if killed else self.ended
        self.records.event(event, _ending(status), process=self.name, status=status)
        if now - self._began >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if status in {0, DRAINED} or self.asked or self._failures > self.restarts:
            self.status = status if status >= 0 else 128 - status
            return
        # The first time it may have been chance; then it is given time.
        self._start_at = now + (BACKOFF_S * 2 ** (self._failures - 2) if self._failures > 1 else 0.0)


def _ending(status: int) -> str:
    if status >= 0:
        return {0: "done", DRAINED: "drained"}.get(status, f"failed with status {status}")
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def with_package(environment: Mapping[str, str], root: str, interpreter_folder: str) -> dict[str, str]:
    """Return an environment in which a script finds this package, and `python3` is the agent's own."""
    path = os.pathsep.join(part for part in (root, environment.get("PYTHONPATH", "")) if part)
    programs = os.pathsep.join(part for part in (interpreter_folder, environment.get("PATH", "")) if part)
    return {**environment, "PYTHONPATH": path, "PATH": programs}
