"""The machine, as it decides which knobs can be turned: cores, instructions, memory, allocators, GPUs."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import hardware, usage

ALLOCATORS: Mapping[str, str] = {"tcmalloc": "libtcmalloc*.so.4", "jemalloc": "libjemalloc.so.2"}
"""File of each allocator, as Debian, Ubuntu and Amazon Linux name it; either works preloaded."""

LIBRARIES = ("lib/*-linux-gnu", "lib64", "lib", "local/lib", "local/lib64")
"""Their folders below /usr."""

KEPT_SHARE = 0.9
"""Share of the free memory that is planned with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMachine:
    """A machine that trains."""

    cores: Sequence[int]  # one logical CPU of each physical core
    logical: int  # number of usable logical CPUs, hyper-threads counted
    flags: Sequence[str]  # the processor's flags, as hardware.FLAGS names them
    # Shared libraries that can replace malloc, by name.
    allocators: Mapping[str, str] = field(default_factory=dict)
    glibc: bool = True  # the C library is glibc
    free_gib: float  # memory that processes may still take; the first GPU's if the benchmark runs on it
    gpu: str | None = None  # the first GPU's name; None without one
    compute_capability: float = 0.0  # of that GPU, such as 7.5

    @property
    def threads_per_core(self) -> int:
        return max(1, self.logical // len(self.cores))

    def at_once(self, process_gib: float) -> int:
        return int(KEPT_SHARE * self.free_gib / process_gib)


def inspect_machine(device: str) -> TrainingMachine:
    """Return this machine as it matters to training on `cpu` or `gpu`."""
    name, memory_gib, capability = _gpu() if device == "gpu" else (None, 0.0, 0.0)
    return TrainingMachine(
        cores=hardware.one_cpu_per_core(),
        logical=len(hardware.usable_cpus()),
        flags=hardware.cpu_flags(),
        allocators=_allocators(),
        glibc=hardware.is_glibc(),
        free_gib=memory_gib if name else (usage.free_bytes() or hardware.memory_bytes()) / usage.GIB,
        gpu=name,
        compute_capability=capability,
    )


def _allocators() -> dict[str, str]:
    paths_by_name = {
        name: sorted(str(path) for folder in LIBRARIES for path in Path("/usr").glob(f"{folder}/{pattern}"))
        for name, pattern in ALLOCATORS.items()
    }
    return {name: paths[-1] for name, paths in paths_by_name.items() if paths}


def _gpu() -> tuple[str | None, float, float]:
    """Return the first GPU's name, free memory in GiB and compute capability; None, 0 and 0 without one."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "-1"
    rows = [] if hidden else hardware.query_gpus("name", "memory.free", "compute_cap")
    with suppress(ValueError):
        for name, free_mib, capability in rows:
            return name, float(free_mib) / 1024, float(capability)
    return None, 0.0, 0.0
