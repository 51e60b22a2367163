"""An instance that stands by: its agent runs a program when the coordinator is lost, or its controller dies.

The program decides, by what EC2 says, whether this instance takes over; where there is none, nothing happens.
"""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .records import Event, Records

ALONE_S = 30.0
"""Without a coordinator for so long an instance that stands by tries to take over. A lighthouse that ended
is started again within a second, and a machine that is paused by its host comes back within a few."""

RETRY_S = 30.0
KILLED = "137"


@dataclass(slots=True, kw_only=True)
class Successor:
    """Runs the program of an instance that stands by.

    Args:
        program: It may appear, and be replaced, while the agent runs; None: this instance never stands by.
    """

    program: Path | None
    records: Records
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _retry_at: float = field(default=0.0, init=False)

    def poll(self, alone_s: float, now: float, *, coordinates: bool) -> None:
        """Start the program if it is due.

        Args:
            alone_s: Seconds since the last sign of coordinator or controller.
            now: Seconds of a monotonic clock.
            coordinates: True if this instance runs the lighthouse.
        """
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process, self._retry_at = None, now + RETRY_S
        if self.program is None or now < self._retry_at or not self.program.is_file():
            return
        if alone_s >= ALONE_S and not coordinates:
            self._start(self.program, f"no coordinator for {alone_s:.0f} s")
        elif coordinates and self._is_controller_killed(self.program):
            self._start(self.program, "the controller was killed")

    def _start(self, program: Path, cause: str) -> None:
        self.records.event(Event.TAKE_OVER, cause)
        # Its own session: the end of this agent is not to end it.
        self._process = subprocess.Popen(["sh", str(program.absolute())], start_new_session=True)

    @staticmethod
    def _is_controller_killed(program: Path) -> bool:
        """True if the controller's job began and is gone without an end of its own."""
        folder = program.parents[1] / "runs" / "control"
        try:
            os.kill(int((folder / "pid").read_text()), 0)
        except ProcessLookupError:
            return not (folder / "exit_status").exists() or _status(folder) == KILLED
        except (OSError, ValueError):
            return False
        return _status(folder) == KILLED


def _status(folder: Path) -> str:
    try:
        return (folder / "exit_status").read_text().strip()
    except OSError:
        return ""
