"""End this instance on time: at the end of its budget, and before it when nobody uses it.

With shutdown behaviour "terminate", an instance that shuts down is gone for good, and its disk with it. A
timer of the system itself is armed from the first boot on; this program moves it forward while a run lives or
somebody works here. So an end is missed only if both fail, and neither needs the launcher. DLCLOUD_ROOT, and
a DLCLOUD_MINUTE_S other than 60, are set on the local EC2 only.
"""

import contextlib
import fcntl
import math
import os
import pathlib
import subprocess
import time

LIFE_MINUTES = float("@LIFE_MINUTES@")
IDLE_MINUTES = float("@IDLE_MINUTES@")  # inf: however long nobody works
USER = "@USER@"
ROOT = os.environ.get("DLCLOUD_ROOT", "")
MINUTE_S = float(os.environ.get("DLCLOUD_MINUTE_S", "60"))
STATE = pathlib.Path(ROOT + "/var/lib/dlcloud")
HOME = pathlib.Path(os.environ["HOME"] if ROOT else "~" + USER).expanduser()
BUSY_SHARE = 0.05
"""Of a processor, over a tick: what a user's programs need to count as work."""


def main() -> None:
    """Arm the timer; where idleness ends the instance, watch until the system goes down, once."""
    if math.isinf(IDLE_MINUTES):
        # The timer needs nobody to watch it, only to be armed again after a reboot.
        arm(deadline() - time.time())
        return
    with (STATE / "watchdog.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        watch(deadline())


def watch(ends_at: float) -> None:
    """Arm the timer, and move it forward while there is work."""
    tick_s = MINUTE_S / 4
    busy_before, used_at = busy_seconds(), time.time()
    armed_for = math.inf
    while True:
        now, busy = time.time(), busy_seconds()
        if run_lives() or touched_since(used_at) or busy - busy_before > BUSY_SHARE * tick_s:
            used_at = now
        busy_before = busy
        wanted = min(ends_at, used_at + IDLE_MINUTES * MINUTE_S)
        # The timer counts whole minutes: a change of less is none.
        if abs(wanted - armed_for) >= MINUTE_S / 2:
            arm(wanted - now)
            armed_for = wanted
        time.sleep(tick_s)


def deadline() -> float:
    """Return when the budget ends; a reboot does not move it."""
    kept = STATE / "ends-at"
    if not kept.exists():
        unfinished = kept.with_suffix(".new")
        unfinished.write_text(str(time.time() + LIFE_MINUTES * MINUTE_S))
        unfinished.rename(kept)
    return float(kept.read_text())


def arm(seconds: float) -> None:
    """Set the system's timer anew; one that is due fires now."""
    minutes = max(0, math.ceil(seconds / MINUTE_S))
    subprocess.run(["shutdown", "--no-wall", "-P", f"+{minutes}"], check=False)


def run_lives() -> bool:
    """Tell whether a program that dlcloud started has not ended."""
    for pid in HOME.glob("dlcloud/runs/*/pid"):
        if not (pid.parent / "exit_status").exists():
            with contextlib.suppress(ValueError, ProcessLookupError, FileNotFoundError):
                os.kill(int(pid.read_text()), 0)
                return True
    return False


def touched_since(moment: float) -> bool:
    """Tell whether a command of dlcloud came by."""
    with contextlib.suppress(FileNotFoundError):
        return (HOME / "dlcloud/used").stat().st_mtime > moment
    return False


def busy_seconds() -> float:
    """Return the processor time of the user's living programs, and of what they started and has ended.

    On the local EC2 programs are not told apart by their user.
    """
    if ROOT:
        return 0.0
    owner, ticks = HOME.stat().st_uid, 0
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit() and entry.stat().st_uid == owner:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


main()
