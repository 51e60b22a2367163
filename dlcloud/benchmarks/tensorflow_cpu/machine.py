"""Look at what decides which settings a machine can run: cores, instructions, memory, allocators, GPUs."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import hardware
from ..harness.heap import is_glibc
from .sizes import GIB

ALLOCATORS: Mapping[str, str] = {"tcmalloc": "libtcmalloc*.so.4", "jemalloc": "libjemalloc.so.2"}
"""File of each allocator, as Debian, Ubuntu and Amazon Linux call it; TensorFlow takes either preloaded."""

LIBRARIES = ("lib/*-linux-gnu", "lib64", "lib", "local/lib", "local/lib64")
"""Where they lie below /usr."""

KEPT_SHARE = 0.9
"""How much of the free memory is planned with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is there.

    Attributes:
        cores: One logical CPU of each physical core.
        logical: How many logical CPUs may be used, hyper-threads counted.
        flags: The processor's, as hardware.FLAGS names them.
        allocators: Shared libraries that can replace malloc, by name.
        glibc: Whether the C library is glibc.
        free_gib: Memory that processes can still take; the first GPU's where the benchmark runs on it.
        gpu: The first GPU's name; None without one.
        compute_capability: Of that GPU, such as 7.5.
    """

    cores: Sequence[int]
    logical: int
    flags: Sequence[str]
    allocators: Mapping[str, str] = field(default_factory=dict)
    glibc: bool = True
    free_gib: float
    gpu: str | None = None
    compute_capability: float = 0.0

    @property
    def threads_per_core(self) -> int:
        """Return how many hyper-threads share a core."""
        return max(1, self.logical // len(self.cores))

    def at_once(self, process_gib: float) -> int:
        """Return how many processes of such a size fit into what is free."""
        return int(KEPT_SHARE * self.free_gib / process_gib)


def look(device: str) -> Machine:
    """Look at this machine, as it matters to training on `cpu` or `gpu`."""
    name, memory_gib, capability = _gpu() if device == "gpu" else (None, 0.0, 0.0)
    return Machine(
        cores=hardware.one_cpu_per_core(),
        logical=len(hardware.usable_cpus()),
        flags=hardware.cpu_flags(),
        allocators=_allocators(),
        glibc=is_glibc(),
        free_gib=memory_gib if name else _free_gib(),
        gpu=name,
        compute_capability=capability,
    )


def _allocators() -> dict[str, str]:
    """Return the path of each allocator that is installed."""
    found = {
        name: sorted(str(path) for folder in LIBRARIES for path in Path("/usr").glob(f"{folder}/{pattern}"))
        for name, pattern in ALLOCATORS.items()
    }
    return {name: paths[-1] for name, paths in found.items() if paths}


def _free_gib() -> float:
    """Return what the kernel, and the control group where this is a container, still give."""
    limits = [_available_bytes(), _group_bytes()]
    return min((limit for limit in limits if limit is not None), default=hardware.memory_bytes()) / GIB


def _available_bytes() -> int | None:
    """Return the memory that can be had without swapping. Source: proc_meminfo(5), MemAvailable."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _group_bytes() -> int | None:
    """Return what the control group leaves. Source: the kernel's cgroup-v2.rst, memory.max."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(limit) - int(used) if limit.isdecimal() else None


def _gpu() -> tuple[str | None, float, float]:
    """Return the first GPU's name, free memory in GiB, and compute capability; None and nothing without."""
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        return None, 0.0, 0.0
    query = ["nvidia-smi", "--query-gpu=name,memory.free,compute_cap", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        name, free_mib, capability = listing.splitlines()[0].rsplit(", ", 2)
        return name, float(free_mib) / 1024, float(capability)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None, 0.0, 0.0
