"""CPU time, memory and energy that the machine and its processes use, as Linux shows them.

CPU time and memory come from `/proc`; elsewhere nothing looks disturbed and no memory is known. psutil would
read the same, but this also runs on an instance's own Python, before any package is installed. Energy is what
processor packages count: on bare metal, for root. Source: Linux, Documentation/power/powercap/powercap.rst. A
package counts microjoules, in turns.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MIB = 1 << 20
GIB = 1 << 30

KEPT_FREE_BYTES = 256 * MIB
"""Memory that is left to the system, in addition to the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """CPU time of the whole machine since it started, in CPU seconds."""

    busy: float  # time that processes here ran, all CPUs together
    stolen: float  # time that the hypervisor gave to other machines while a process here could have run
    total: float  # time that passed, times the number of CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What other work took of a slice, as shares (0 to 1) of all CPU time in it."""

    others: float  # share of other processes
    stolen: float  # share of other machines

    @property
    def share(self) -> float:
        return self.others + self.stolen


def read_cpu_times(path: Path = Path("/proc/stat")) -> CpuTimes:
    """Read the machine's CPU times until now; without `/proc/stat` all are 0: nothing looks disturbed.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal in ticks; guest time is
    part of user.
    """
    line = read_text(path).split("\n", 1)[0]
    if not line:
        return CpuTimes(busy=0.0, stolen=0.0, total=0.0)
    user, nice, system, idle, iowait, irq, softirq, steal = map(_seconds, line.split()[1:9])
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy=busy, stolen=steal, total=busy + idle + iowait + steal)


def disturbance(before: CpuTimes, after: CpuTimes, own: float) -> Disturbance:
    """Return what other work took between two readings; `own` are the benchmark's CPU seconds."""
    total = after.total - before.total
    if total <= 0:
        return Disturbance(others=0.0, stolen=0.0)
    others = max(0.0, after.busy - before.busy - own) / total
    return Disturbance(others=min(1.0, others), stolen=max(0.0, after.stolen - before.stolen) / total)


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants that still run; itself alone without `/proc`.

    Source: proc_pid_task(5), `children`.
    """
    members = [pid]
    for member in members:
        for listing in Path(f"/proc/{member}/task").glob("*/children"):
            members.extend(map(int, read_text(listing).split()))
    return members


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, its threads and its descendants.

    A process that has ended counts for the parent that waited for it, if at all; without `/proc` all is 0.

    Source: proc_pid_stat(5), fields 14 to 17.
    """
    lines = (read_text(Path(f"/proc/{member}/stat")) for member in process_tree(pid))
    return sum(sum(map(_seconds, line.rpartition(")")[2].split()[11:15])) for line in lines)


def memory_of(pid: int, field: str) -> int:
    """Return a field of a process and its descendants, in bytes: VmRSS is resident memory, VmHWM its peak.

    Without `/proc` it is 0. Source: proc_pid_status(5).
    """
    files = (Path(f"/proc/{member}/status") for member in process_tree(pid))
    return sum(_number_beside(file, f"{field}:", unit=1024) or 0 for file in files)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory processes may still take, here and in this control group; None if unknown.

    Source: proc_meminfo(5), MemAvailable; Linux, cgroup-v2.rst, memory.max, memory.current, memory.stat.
    """
    group = root / "sys/fs/cgroup"
    room = [_number_beside(root / "proc/meminfo", "MemAvailable:", unit=1024)]
    limit, used = (read_text(group / f"memory.{name}") for name in ("max", "current"))
    if limit.isdecimal() and used.isdecimal():
        # The cache of files counts as used, and is given back when memory is needed.
        cached = _number_beside(group / "memory.stat", "inactive_file", unit=1) or 0
        room.append(max(0, int(limit) - int(used) + cached))
    return min((limit for limit in room if limit is not None), default=None)


class MemoryUser(Protocol):
    """A setting, as far as its memory is concerned."""

    @property
    def expected_bytes(self) -> int:
        """Return the most memory it is expected to hold; 0 if unknown."""

    def peak_bytes(self) -> int:
        """Return the most memory it has held so far; 0 if unknown."""


def estimate_bytes(setting: MemoryUser, running: Collection[MemoryUser]) -> int:
    """Estimate the memory that a setting is going to hold.

    The expectation is scaled by how much the running settings exceed theirs. Without one it is that of the
    largest running setting.
    """
    if not setting.expected_bytes:
        return max((other.peak_bytes() for other in running), default=0)
    excess = (other.peak_bytes() / other.expected_bytes for other in running if other.expected_bytes)
    return round(setting.expected_bytes * max(1.0, *excess, 1.0))


def explain_shortage(setting: MemoryUser, running: Collection[MemoryUser], free: int | None) -> str | None:
    """Return why a setting cannot be started next to the running ones; None if it can, or if unknown."""
    needed = estimate_bytes(setting, running)
    if free is None or needed <= max(0, free - KEPT_FREE_BYTES):
        return None
    return f"it wants about {needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} GiB are free"


def _number_beside(path: Path, name: str, *, unit: int) -> int | None:
    lines = (line.split() for line in read_text(path).splitlines() if line.startswith(name))
    return next((int(words[1]) * unit for words in lines if len(words) > 1 and words[1].isdecimal()), None)


def _seconds(ticks: str) -> float:
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def read_text(path: Path) -> str:
    """Return the text of a file without outer blanks; empty if it cannot be read, as of an ended process."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


POWERCAP = Path("/sys/class/powercap")


Energy = Mapping[str, tuple[int, int]]
"""What the packages had counted at one moment: microjoules, and at how many a counter starts over."""


def read_energy(root: Path = POWERCAP) -> Energy:
    """Read the counters of all packages; none where there are none, or only root may read them."""
    counters = {}
    for folder in sorted(root.glob("*-rapl:[0-9]*")):
        if folder.name.count(":") == 1:  # two: a part of a package, such as its cores
            with suppress(OSError, ValueError):
                used = int((folder / "energy_uj").read_text())
                counters[folder.name] = (used, int((folder / "max_energy_range_uj").read_text()))
    return counters


def joules_between(before: Energy, after: Energy) -> float | None:
    """Return the joules of all packages from one moment to a later one, at most one turn of a counter."""
    if not before or before.keys() != after.keys():
        return None
    used = (
        (end - start) % turn for (start, turn), (end, _) in zip(before.values(), after.values(), strict=True)
    )
    return sum(used) / 1e6


def energy_facts(joules: Sequence[float | None], items: float) -> dict[str, float]:
    """Return the energy of an item over all slices; nothing where a slice has none."""
    counted = [value for value in joules if value is not None]
    if not counted or len(counted) < len(joules) or not items:
        return {}
    return {"package_joules_per_item": round(sum(counted) / items, 6)}
