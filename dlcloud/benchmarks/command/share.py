"""Run a program on a share of a machine's cores and GPUs: python -m … share INDEX COUNT PROGRAM ARGUMENT ...

Logical CPUs of one core stay together. Where there are fewer cores than shares, cores are shared in turn.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CPUS = Path("/sys/devices/system/cpu")
GPUS = Path("/proc/driver/nvidia/gpus")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main() -> None:
    """Restrict this process to its share, and become the program."""
    index, count = int(sys.argv[1]), int(sys.argv[2])
    cores = cores_of(sorted(os.sched_getaffinity(0)))
    mine = take_share(cores, index, count)
    os.sched_setaffinity(0, {cpu for core in mine for cpu in core})
    gpus = [str(number) for number in range(len(list(GPUS.iterdir())) if GPUS.exists() else 0)]
    program, environment = sys.argv[3:], variables(os.environ, mine, take_share(gpus, index, count))
    os.execvpe(program[0], program, environment)  # noqa: S606  the user's program


def cores_of(cpus: Sequence[int], folder: Path = CPUS) -> list[tuple[int, ...]]:
    """Return the logical CPUs by core, as far as this process may use them."""
    cores: dict[str, list[int]] = {}
    for cpu in cpus:
        topology = folder / f"cpu{cpu}" / "topology"
        try:
            key = ":".join(
                (topology / name).read_text().strip() for name in ("physical_package_id", "core_id")
            )
        except OSError:  # the system does not say: each is its own core
            key = f"cpu{cpu}"
        cores.setdefault(key, []).append(cpu)
    return [tuple(core) for core in cores.values()]


def take_share(items: Sequence[T], index: int, count: int) -> list[T]:
    """Return one of `count` shares of about the same size; with fewer items than shares, one item."""
    if not items:
        return []
    if len(items) < count:
        return [items[index % len(items)]]
    return list(items[index * len(items) // count : (index + 1) * len(items) // count])


def variables(
    environment: Mapping[str, str], cores: Sequence[Sequence[int]], gpus: Sequence[str]
) -> dict[str, str]:
    """Return the program's variables: threads for its cores, its GPUs; what the user has set stays."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(len(cores)))
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return {**threads, **visible, **environment}


if __name__ == "__main__":
    main()
