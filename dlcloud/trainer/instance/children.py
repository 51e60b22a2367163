"""Child processes of an agent: started, restarted after a failure, asked to leave, and always ended."""

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..drain import DRAINED
from ..event_names import EventName
from ..records import Records

STEADY_S = 60.0
"""A process that ran so long has its count of failures reset."""

BACKOFF_S = 1.0

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, kw_only=True)
class Child:
    """A supervised process.

    Args:
        name: In the records.
        environment: The whole of it.
        restarts: Restarts after failures in a row.
        started, ended: The events that record it.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    records: Records
    restarts: int
    started: EventName = EventName.WORKER_STARTED
    ended: EventName = EventName.WORKER_ENDED
    is_leaving: bool = field(default=False, init=False)
    status: int | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _start_at: float = field(default=0.0, init=False)
    _started_at: float = field(default=0.0, init=False)

    @property
    def has_ended(self) -> bool:
        """True if it will not be started again; `status` is its last exit status."""
        return self.status is not None

    def poll(self, now: float) -> None:
        """Start it if it is due, or handle its exit.

        Args:
            now: Seconds of a monotonic clock.
        """
        if self.has_ended:
            return
        if self._process is None:
            if self.is_leaving:
                self.status = DRAINED
            elif now >= self._start_at:
                self._start(now)
            return
        status = self._process.poll()
        if status is not None:
            self._process = None
            self._handle_exit(status, now)

    def ask_to_leave(self) -> None:
        """Send SIGTERM, once."""
        if not self.is_leaving and self._process is not None:
            self._process.terminate()
        self.is_leaving = True

    def kill(self) -> None:
        """Send SIGKILL; the process is not started again."""
        self.is_leaving = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Kill it and wait until it has ended."""
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
        self._started_at = now
        self.records.event(
            self.started,
            "again" if self._failures else "first time",
            process=self.name,
            pid=self._process.pid,
        )

    def _handle_exit(self, status: int, now: float) -> None:
        event = EventName.KILLED if status == -signal.SIGKILL else self.ended
        self.records.event(event, _describe_exit(status), process=self.name, status=status)
        if now - self._started_at >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self.is_leaving and status == -signal.SIGTERM:
            # It was asked to leave before it could listen.
            status = DRAINED
        if status in {0, DRAINED} or self.is_leaving or self._failures > self.restarts:
            self.status = status if status >= 0 else 128 - status
            return
        # A first failure may be chance: restart at once, later ones after a growing pause.
        self._start_at = now + (BACKOFF_S * 2 ** (self._failures - 2) if self._failures > 1 else 0.0)


def _describe_exit(status: int) -> str:
    if status >= 0:
        return {0: "done", DRAINED: "drained"}.get(status, f"failed with status {status}")
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent ends; on other systems nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def watch_termination() -> threading.Event:
    """Return an event that is set by SIGTERM, by SIGINT and by the end of the parent process."""
    end_with_parent()
    terminated = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: terminated.set())
    return terminated
