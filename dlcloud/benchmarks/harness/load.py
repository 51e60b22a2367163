"""Tell how much of a slice of time other processes took, so that a busy machine cannot pass unnoticed."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """CPU time of the whole machine since it started, in CPU seconds.

    Attributes:
        busy: Time that processes here ran, all CPUs together.
        stolen: Time that the hypervisor gave to other machines while a process here could have run.
        total: Time that passed, times the number of CPUs.
    """

    busy: float
    stolen: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What others took of a slice, as shares (0 to 1) of all CPU time in it."""

    others: float
    stolen: float

    @property
    def share(self) -> float:
        """Return all that was not there for the benchmark to use."""
        return self.others + self.stolen


class Load(Protocol):
    """Reads the machine's CPU time."""

    def read(self) -> CpuTimes:
        """Return the CPU time until now."""


@dataclass(frozen=True, slots=True)
class ProcLoad:
    """Reads `/proc/stat`; where there is none, nothing ever looks disturbed.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal in ticks; guest time is
    part of user.
    """

    path: Path = Path("/proc/stat")

    def read(self) -> CpuTimes:
        """Return the CPU time until now."""
        try:
            line = self.path.read_text(encoding="ascii").split("\n", 1)[0]
        except OSError:
            return CpuTimes(busy=0.0, stolen=0.0, total=0.0)
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(ticks) / _ticks_per_second() for ticks in line.split()[1:9]
        )
        busy = user + nice + system + irq + softirq
        return CpuTimes(busy=busy, stolen=steal, total=busy + idle + iowait + steal)


def disturbance(before: CpuTimes, after: CpuTimes, own: float) -> Disturbance:
    """Return what others took between two readings.

    Args:
        before: The reading at the start of the slice.
        after: The reading at its end.
        own: CPU seconds that the benchmark itself used in the slice.
    """
    total = after.total - before.total
    if total <= 0:
        return Disturbance(others=0.0, stolen=0.0)
    others = max(0.0, after.busy - before.busy - own) / total
    return Disturbance(others=min(1.0, others), stolen=max(0.0, after.stolen - before.stolen) / total)


def family(pid: int) -> list[int]:
    """Return a process and all that it started and that still run; itself alone where there is no `/proc`.

    Source: proc_pid_task(5), `children`.
    """
    members = [pid]
    for member in members:
        for listing in Path(f"/proc/{member}/task").glob("*/children"):
            with suppress(OSError):
                members.extend(int(child) for child in listing.read_text(encoding="ascii").split())
    return members


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, its threads and all that it started.

    Those that are gone count for 0, or for the parent that waited for them; so does all where there is no
    `/proc`. Source: proc_pid_stat(5), fields 14 to 17.
    """
    return sum(map(_own_cpu_s, family(pid)))


def _own_cpu_s(pid: int) -> float:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = line.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / _ticks_per_second()


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
