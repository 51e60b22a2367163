"""What an instance does that hears nothing of its coordinator or controller any more.

`OrphanWatch` counts how long that has lasted. After a while a standby runs the program that takes the control
over (`Successor`): it decides, by what EC2 says, whether this instance does. If no instance takes over, the
instance ends itself (`power_off`): else only its budget would end it.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..coordination.ledger import LedgerClient, LedgerError, WrongRunError
from ..records import EventName, Records

MARK = "power-off"
"""The file by which a program in a container asks for the end of its instance."""

LOOK_S = 10.0
"""Between two looks."""

MOST_LOOK_S = 60.0
"""A longer time between two is a pause of this machine: its rest does not count."""


@dataclass(slots=True, kw_only=True)
class OrphanWatch:
    """Counts the time without a sign of coordinator or controller, from a thread.

    Args:
        run: Name of the run.
        ledger: Returns the present address of the coordinator's ledger.
        control: The control file; the controller writes it, and touches it while there is no coordinator.
        limit_s: After so long the instance is an orphan.
    """

    run: str
    ledger: Callable[[], str]
    control: Path
    limit_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _alone_s: float = field(default=0.0, init=False)
    _stamp: int = field(default=-1, init=False)

    @property
    def alone_s(self) -> float:
        """Seconds since the last sign."""
        return self._alone_s

    @property
    def is_orphan(self) -> bool:
        return self._alone_s >= self.limit_s

    def start(self) -> None:
        threading.Thread(target=self._watch, name="orphan", daemon=True).start()

    def look(self, seconds: float) -> None:
        """Look for a sign, this many seconds after the last look."""
        self._alone_s += min(seconds, MOST_LOOK_S)
        if self._has_changed() or self._has_coordinator():
            self._alone_s = 0.0

    def _watch(self) -> None:
        before = self.clock()
        while True:
            self.sleep(LOOK_S)
            now = self.clock()
            self.look(now - before)
            before = now

    def _has_changed(self) -> bool:
        try:
            stamp = self.control.stat().st_mtime_ns
        except OSError:
            return False
        before, self._stamp = self._stamp, stamp
        return stamp != before

    def _has_coordinator(self) -> bool:
        try:
            LedgerClient(address=self.ledger(), run=self.run).read()
        except (LedgerError, WrongRunError):
            return False
        return True


def power_off(folder: Path) -> None:
    """End this instance, which is terminated at shutdown; in a container, by what supervises the run outside.

    Args:
        folder: Of the run. A file `power-off` in it asks for the shutdown once this program has ended.
    """
    words = ["systemctl", "--no-wall", "poweroff", "-i"]  # -i: whatever program locks it
    try:
        done = subprocess.run(words if os.geteuid() == 0 else ["sudo", "-n", *words], check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        (folder / MARK).touch()


ALONE_S = 30.0
"""Without a coordinator for this long an instance that stands by tries to take over. A lighthouse that ended
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
        """True if the controller's job began and is gone without having ended itself."""
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
