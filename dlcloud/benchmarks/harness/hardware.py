"""Describe the machine and the software that a figure was measured on."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .records import redact_variables
from .usage import GIB, read_text

# The instruction sets that decide how fast inference and training run.
FLAGS = (
    "sse4_2", "avx", "fma", "avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16",
    "avx_vnni", "avx_vnni_int8", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip

X86_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
BF16_FLAGS = X86_BF16_FLAGS | {"bf16"}
"""Any of these computes bf16 natively, where others imitate it; the last is Arm's."""

NO_BF16 = "this processor has neither AVX512_BF16 nor AMX"

STEERING = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "NUMEXPR_",
    "TF_ENABLE_", "TF_NUM_", "TF_SET_", "TF_XLA_", "TF_USE_", "TF_DISABLE_", "XLA_", "KERAS_",
    "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "NVIDIA_", "OV_", "ORT_",
    "MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES",
)  # fmt: skip
"""How the variables begin that change how fast frameworks run."""

NOT_GLIBC = "only glibc's allocator can keep freed memory"

# The C library keeps freed memory, in huge pages, for the next step. Otherwise every large tensor goes back
# to the kernel when it is freed, and is filled with zeros again a step later.
# Source: mallopt(3), M_MMAP_MAX and the others; glibc manual, "Memory Allocation Tunables", hugetlb (2.35).
HEAP_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}

CPUS = Path("/sys/devices/system/cpu")


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """Return `environment`, `hardware` and `software` as in records.py, of packages that are installed."""
    return {
        "environment": redact_variables(
            {name: value for name, value in sorted(os.environ.items()) if name.startswith(STEERING)}
        ),
        "hardware": {
            "cpu_model": cpu_model(),
            "physical_cores": physical_cores(),
            "logical_cpus": os.cpu_count() or 1,
            "usable_cpus": len(usable_cpus()),
            "affinity": _ranges(sorted(usable_cpus())),
            "cpu_flags": cpu_flags(),
            "memory_gib": round(memory_bytes() / GIB, 2),
            "gpus": gpus(),
            "governor": read_text(CPUS / "cpu0/cpufreq/scaling_governor"),
            "kernel": platform.release(),
            "virtualization": _virtualization(),
        },
        "software": {"python": platform.python_version(), "packages": dict(_versions(packages))},
    }


def cpu_model() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """Return those of FLAGS that the processor has."""
    info = _cpuinfo()
    present = set((info.get("flags") or info.get("Features") or "").split())
    return [flag for flag in FLAGS if flag in present]


def usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Count the cores behind the usable CPUs; hyper-threads of one core count once."""
    return max(1, len(one_cpu_per_core()))


def one_cpu_per_core() -> list[int]:
    """Return the first usable logical CPU of each core, sorted.

    The lists of siblings identify the cores: virtual machines often give every CPU the core number 0.
    """
    first: dict[str, int] = {}
    for cpu in sorted(usable_cpus()):
        siblings = read_text(CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings or f"alone {cpu}", cpu)
    return sorted(first.values())


def pin_to_cores() -> None:
    """Keep this process and its future children to one logical CPU of each physical core.

    Raises:
        OSError: The system cannot.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("this system cannot keep processes to CPUs")
    os.sched_setaffinity(0, one_cpu_per_core())


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as Linux writes lists of CPUs: `0-3,8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_glibc() -> bool:
    """True if the C library is glibc, whose allocator has HEAP_VARIABLES."""
    return platform.libc_ver()[0] == "glibc"


def gpus() -> list[dict[str, Any]]:
    """Return the NVIDIA GPUs that the driver shows; none without a driver."""
    return [
        {"name": name, "memory_mib": float(memory), "driver": driver, "compute_capability": capability}
        for name, memory, driver, capability in query_gpus(
            "name", "memory.total", "driver_version", "compute_cap"
        )
        if memory.replace(".", "").isdigit()
    ]


def query_gpus(*fields: str) -> list[list[str]]:
    """Return the fields of each NVIDIA GPU as nvidia-smi prints them; nothing without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ") for line in listing.splitlines())
    return [row for row in rows if len(row) == len(fields)]


def _virtualization() -> str:
    """Return `none`, or the maker and model of the virtual machine, such as `Amazon EC2 c7i.large`."""
    if "hypervisor" not in (_cpuinfo().get("flags") or "").split():
        return "none" if _cpuinfo().get("flags") else "unknown"
    vendor = read_text(Path("/sys/class/dmi/id/sys_vendor"))
    product = read_text(Path("/sys/class/dmi/id/product_name"))
    return " ".join(part for part in (vendor, product) if part) or "virtual machine"


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's entries in `/proc/cpuinfo`; empty without it."""
    first = read_text(Path("/proc/cpuinfo")).split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:  # noqa: PERF203 - its cost is that of older Pythons
            continue


def main() -> None:
    sys.stdout.write(json.dumps(describe(())["hardware"]) + "\n")


if __name__ == "__main__":
    main()
