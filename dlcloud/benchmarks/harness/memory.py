"""Tell how much memory is free, how much a process has held, and how much the next one may want."""

import platform
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from . import load

MIB = 1 << 20
GIB = 1 << 30

KEPT_FREE_BYTES = 256 * MIB
"""What is left to the system beside the settings."""


NOT_GLIBC = "only glibc's allocator can be told to keep freed memory"

# The C library keeps freed memory, in huge pages, for the next step. Otherwise every large tensor goes back
# to the kernel when it is freed, and is filled with zeros anew a step later.
# Source: mallopt(3), M_MMAP_MAX and the others; glibc manual, "Memory Allocation Tunables", hugetlb (2.35).
HEAP_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class MemoryUser(Protocol):
    """A setting, as far as its memory is concerned."""

    @property
    def expected_bytes(self) -> int:
        """Return what it is expected to hold at most, known before it starts; 0 where nothing is known."""

    def peak_bytes(self) -> int:
        """Return the most that it has held so far; 0 where that is not known."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory processes may still take, here and in this control group; None if unknown.

    Source: proc_meminfo(5), MemAvailable; Linux, cgroup-v2.rst, memory.max, memory.current, memory.stat.
    """
    group = root / "sys/fs/cgroup"
    room = [_line(root / "proc/meminfo", "MemAvailable:", unit=1024)]
    limit, used = (_number(group / f"memory.{name}") for name in ("max", "current"))
    if limit is not None and used is not None:
        # The cache of files counts as used, and is given back when memory is asked for.
        cached = _line(group / "memory.stat", "inactive_file", unit=1) or 0
        room.append(max(0, limit - used + cached))
    return min((each for each in room if each is not None), default=None)


def peak_bytes(pid: int) -> int:
    """Return the most that a process, and each that it started, has held; 0 where there is no `/proc`.

    Source: proc_pid_status(5), VmHWM.
    """
    files = (Path(f"/proc/{member}/status") for member in load.family(pid))
    return sum(_line(file, "VmHWM:", unit=1024) or 0 for file in files)


def estimate_bytes(setting: MemoryUser, running: Collection[MemoryUser]) -> int:
    """Estimate what a setting is going to hold.

    Of settings that run already it is known by how much they exceed what was expected of them. Of a setting
    of which nothing is known, no more is expected than of the largest that runs.
    """
    if not setting.expected_bytes:
        return max((each.peak_bytes() for each in running), default=0)
    known = (each.peak_bytes() / each.expected_bytes for each in running if each.expected_bytes)
    return round(setting.expected_bytes * max(1.0, *known, 1.0))


def shortage(setting: MemoryUser, running: Collection[MemoryUser], free: int | None) -> str | None:
    """Say why a setting cannot be started beside those that run; None where there is room, or none knows."""
    wanted = estimate_bytes(setting, running)
    if free is None or wanted <= max(0, free - KEPT_FREE_BYTES):
        return None
    return f"it wants about {wanted / GIB:.1f} GiB of memory, and {free / GIB:.1f} GiB are free"


def _line(path: Path, name: str, *, unit: int) -> int | None:
    """Return the number beside a name in a file of lines."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith(name))
    return next((int(words[1]) * unit for words in found if len(words) > 1 and words[1].isdecimal()), None)


def _number(path: Path) -> int | None:
    """Return the number that a file holds; None for `max`, or where there is no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def is_glibc() -> bool:
    """True if the C library is glibc, whose allocator has HEAP_VARIABLES."""
    return platform.libc_ver()[0] == "glibc"
