"""End this instance on time: at the end of its budget, or earlier when it is idle.

With shutdown behaviour "terminate", an instance that shuts down is terminated, and its disk deleted. The
system's own timer is armed from the first boot on; this program moves it forward while a run lives or a user
works here. So the end is missed only if both fail, and neither needs the launcher. DLCLOUD_ROOT, and a
DLCLOUD_MINUTE_S other than 60, are set on the local EC2 only.
"""

import contextlib
import fcntl
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
HOME = pathlib.Path(os.environ["HOME"] if ROOT else "~" + USER).expanduser()
NOLOGIN_S = 5 * MINUTE_S
"""Before an end of the timer, in which systemd refuses logins. Source: shutdown(8)."""
BUSY_SHARE = 0.05
"""Share of one processor, over a tick, from which a user's programs count as work."""


def main() -> None:
    """Arm the timer; if idleness ends the instance, watch it, in one process, until the system goes down."""
    if math.isinf(IDLE_MINUTES):
        # The timer needs no watching, only to be armed again after a reboot.
        arm(deadline() - time.time())
        return
    with (STATE / "watchdog.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        watch(deadline())


def watch(ends_at: float) -> None:
    """Arm the timer, and move it forward while the instance is in use."""
    tick_s = MINUTE_S / 4
    busy_before, used_at = busy_seconds(), time.time()
    armed_for = math.inf
    while True:
        now, busy = time.time(), busy_seconds()
        if has_running_job() or was_used_since(used_at) or busy - busy_before > BUSY_SHARE * tick_s:
            used_at = now
        busy_before = busy
        end = min(ends_at, used_at + IDLE_MINUTES * MINUTE_S)
        # The timer counts whole minutes: smaller changes are skipped.
        if abs(end - armed_for) >= MINUTE_S / 2:
            if armed_for - now <= NOLOGIN_S < end - now:
                cancel()
            arm(end - now)
            armed_for = end
        time.sleep(tick_s)


def deadline() -> float:
    """Return the end of the budget; a reboot does not move it."""
    path = STATE / "ends-at"
    if not path.exists():
        unfinished = path.with_suffix(".new")
        unfinished.write_text(str(time.time() + LIFE_MINUTES * MINUTE_S))
        unfinished.rename(path)
    return float(path.read_text())


def arm(seconds: float) -> None:
    """Set the system's timer; a time in the past ends the instance now."""
    minutes = max(0, math.ceil(seconds / MINUTE_S))
    subprocess.run(["shutdown", "--no-wall", "-P", f"+{minutes}"], check=False)


def cancel() -> None:
    """Clear the system's timer, and with it /run/nologin, which a later timer would leave."""
    subprocess.run(["shutdown", "--no-wall", "-c"], check=False)


def has_running_job() -> bool:
    """True if a program that dlcloud started has not ended."""
    for pid in HOME.glob("dlcloud/runs/*/pid"):
        if not (pid.parent / "exit_status").exists():
            with contextlib.suppress(ValueError, ProcessLookupError, FileNotFoundError):
                os.kill(int(pid.read_text()), 0)
                return True
    return False


def was_used_since(moment: float) -> bool:
    """True if a command of dlcloud connected after a time."""
    with contextlib.suppress(FileNotFoundError):
        return (HOME / "dlcloud/used").stat().st_mtime > moment
    return False


def busy_seconds() -> float:
    """Return the processor time of the user's processes and of their ended children.

    The processes of a local EC2's instances have one user; there it is 0.
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
