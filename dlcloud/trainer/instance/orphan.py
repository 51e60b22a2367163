"""An instance that has neither coordinator nor controller any more, and that only its budget would end."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..coordination.ledger import LedgerClient, LedgerError, WrongRunError

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
        """Look for a sign, so many seconds after the last look."""
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
