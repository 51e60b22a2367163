"""End this instance on time: at the end of its budget, or earlier when it is idle.

With shutdown behaviour "terminate", an instance that powers off is terminated, and its disk deleted. systemd
starts this program at every boot, and again if it fails. A timer of systemd's ends the budget without it; a
reboot forgets that timer, so this program arms one for the rest. None of it needs the launcher. DLCLOUD_ROOT,
and a DLCLOUD_MINUTE_S other than 60, are set on the local EC2 only.
"""

import contextlib
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


def main() -> None:
    """Arm the end of the budget; if idleness ends the instance, watch it until the system goes down."""
    ends_at = deadline()
    if not math.isinf(IDLE_MINUTES):
        watch(ends_at)


def watch(ends_at: float) -> None:
    """Power off when the instance was idle for its minutes, or at the end of its budget."""
    tick_s = MINUTE_S / 4
    busy_before, used_at = busy_seconds(), time.time()
    while True:
        now, busy = time.time(), busy_seconds()
        if has_running_job() or was_used_since(used_at) or busy - busy_before > BUSY_SHARE * tick_s:
            used_at = now
        busy_before = busy
        if now >= min(ends_at, used_at + IDLE_MINUTES * MINUTE_S):
            # Again at every tick until the system has gone down.
            subprocess.run(["systemctl", "poweroff"], check=False)
        time.sleep(tick_s)


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
    subprocess.run([*timer, "systemctl", "poweroff"], check=False)


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
