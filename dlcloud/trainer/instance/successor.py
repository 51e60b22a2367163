"""An instance that stands by: its agent runs a program when the coordinator is lost, or its controller dies.

The program decides, by what EC2 says, whether this instance takes over; where there is none, nothing happens.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..event_names import EventName
from ..records import Records

ALONE_S = 30.0
"""Without a coordinator for so long an instance that stands by tries to take over. A lighthouse that ended
is started again within a second, and a machine that is paused by its host comes back within a few."""

RETRY_S = 30.0
KILLED = "137"

NAMES, PREFIX = "DLCLOUD_SECRETS", "DLCLOUD_SECRET_"
"""The variable with the names of a program's secrets, and how a controller calls these."""

INHERITED = (
    *("HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER", "XDG_CACHE_HOME"),
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "DLCLOUD_ROOT", "DLCLOUD_MINUTE_S"),
)
"""Variables of the instance; the last three are set on the local EC2 only."""


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
        self.records.event(EventName.TAKE_OVER, cause)
        # Its own session: the end of this agent is not to end it.
        self._process = subprocess.Popen(
            ["sh", str(program.absolute())], env=controller_environment(os.environ), start_new_session=True
        )

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


def controller_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a controller, from that of a training on the same instance.

    The training's own variables and credentials must not become the controller's; it passes the secrets on to
    the workers that it starts, so it has them under other names.
    """
    secrets = environment.get(NAMES, "").split()
    kept = {name: environment[name] for name in INHERITED if name in environment}
    return kept | {PREFIX + name: environment[name] for name in secrets if name in environment}


def _status(folder: Path) -> str:
    try:
        return (folder / "exit_status").read_text().strip()
    except OSError:
        return ""
