"""End this instance on time: at the end of its budget, or earlier when it is idle.

With shutdown behaviour "terminate", an instance that powers off is terminated, and its disk deleted. systemd
starts this program at every boot, and again if it fails. A timer of systemd's ends the budget without it; a
reboot forgets that timer, so this program arms one for the rest. A timer orders once; this program repeats
the order until the system is down. None of it needs the launcher. DLCLOUD_ROOT, and a DLCLOUD_MINUTE_S other
than 60, are set on the local EC2 only.
"""

import contextlib
import itertools
import math
import os
import pathlib
import subprocess
import time

LIFE_MINUTES = float("@LIFE_MINUTES@")
IDLE_MINUTES = float("@IDLE_MINUTES@")  # inf: never ended for idleness
USER = "@USER@"
ROOT = os.environ.get("DLCLOUD_ROOT", "")
MINUTE_S = float(os.environ.get("DLCLOUD_MINUTE_S", "60"))
STATE = pathlib.Path(ROOT + "/var/lib/dlcloud")
HOME = pathlib.Path(os.environ["HOME"] if ROOT else os.path.expanduser("~" + USER))  # noqa: PTH111
# Path.expanduser would fail if the image has no such user; then there is no such folder, and no work is seen.
BUSY_SHARE = 0.05
"""Share of one processor, over a tick, from which a user's programs count as work."""
TICK_S = MINUTE_S / 4
POLITE_TICKS = 8
"""Longer than systemd waits for services to stop (DefaultTimeoutStopSec: 90 s)."""
LONGEST_ORDER_S = 60.0


def main() -> None:
    """Wait for the end of the budget or of the idle minutes, then power off until the system is down."""
    wait_for_end(deadline())
    power_off()


def wait_for_end(ends_at: float) -> None:
    """Sleep until the budget ends, or until the instance was idle for its minutes, if it has any.

    A clock that is set meanwhile moves neither: both are counted by the clock that only runs on.
    """
    now = time.monotonic()
    budget_ends_at, used_at = now + ends_at - time.time(), now
    used, busy_before = last_use(), busy_seconds()
    while now < min(budget_ends_at, used_at + IDLE_MINUTES * MINUTE_S):
        time.sleep(TICK_S)
        now = time.monotonic()
        if math.isinf(IDLE_MINUTES):
            continue  # nothing is looked at that could disturb a measurement
        use, busy = last_use(), busy_seconds()
        if has_running_job() or use != used or busy - busy_before > BUSY_SHARE * TICK_S:
            used_at = now
        used, busy_before = use, busy


def power_off() -> None:
    """Order the end at every tick until the system has gone down; after some, without asking anything.

    From systemd 257 on, a lock that a program holds against a shutdown (apt does, while it runs) binds root
    as well. Source: systemd 257, NEWS; systemctl(1): -i, --force. The disk is deleted with the instance.
    """
    for tick in itertools.count():
        options = ["-i"] if tick < POLITE_TICKS else ["--force", "--force"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["systemctl", "poweroff", *options], check=False, timeout=LONGEST_ORDER_S)
        time.sleep(TICK_S)


def deadline() -> float:
    """Return the end of the budget; a reboot does not move it, and arms another timer for it."""
    path = STATE / "ends-at"
    stored = path.read_text() if path.exists() else ""
    if stored:
        arm(float(stored) - time.time())
        return float(stored)
    ends_at = time.time() + LIFE_MINUTES * MINUTE_S
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(ends_at))
    unfinished.rename(path)
    return ends_at


def arm(seconds: float) -> None:
    """Have systemd power off after a time; one in the past ends the instance now."""
    timer = ["systemd-run", "--unit=dlcloud-budget", f"--on-active={max(1, math.ceil(seconds))}s"]
    subprocess.run([*timer, "systemctl", "poweroff", "-i"], check=False)


def has_running_job() -> bool:
    """True if a program that dlcloud started has not ended."""
    for pid in HOME.glob("dlcloud/runs/*/pid"):
        if not (pid.parent / "exit_status").exists():
            with contextlib.suppress(ValueError, ProcessLookupError, FileNotFoundError):
                os.kill(int(pid.read_text()), 0)
                return True
    return False


def last_use() -> float:
    """Return what changes whenever a command of dlcloud connects."""
    with contextlib.suppress(FileNotFoundError):
        return (HOME / "dlcloud/used").stat().st_mtime
    return 0.0


def busy_seconds() -> float:
    """Return the processor time of the user's processes and of their ended children.

    The processes of a local EC2's instances have one user; there it is 0.
    """
    if ROOT or not HOME.exists():
        return 0.0
    owner, ticks = HOME.stat().st_uid, 0
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit() and entry.stat().st_uid == owner:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


main()
