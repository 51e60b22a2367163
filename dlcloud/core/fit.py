"""The decision which benchmarks fit a machine: from what its type promises, and from what it really has."""

from collections.abc import Iterable
from dataclasses import dataclass

from dlcloud.benchmarks.harness.benchmark import Benchmark, HardwareNeed
from dlcloud.core.instance import InstanceType
from dlcloud.core.result import Hardware

FLAGS_OF_ISA = {
    "avx2": ("avx", "avx2", "fma"),
    "avx512": ("avx512f", "avx512bw"),
    "vnni": ("avx512_vnni",),
    "bf16": ("avx512_bf16",),
    "amx": ("amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"),
}
"""What /proc/cpuinfo shows for the words of the table of instance types; who has AMX has AVX512_BF16, too."""

USABLE_MEMORY = 0.92
"""Of the memory that a type is sold with, the kernel shows so much at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What counts for a fit. `name` is how reasons call it."""

    name: str
    flags: frozenset[str]
    memory_gib: float | None
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What is not run, and why; `setting` is empty where it is the whole benchmark."""

    benchmark: str
    setting: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What runs on a machine, what does not, and what runs there with less gain than elsewhere."""

    benchmarks: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    advice: tuple[LeftOut, ...]


def machine_of_type(hardware: InstanceType) -> Machine:
    """Return the machine that an instance type promises."""
    flags = (flag for isa in hardware.cpu_isa for flag in FLAGS_OF_ISA.get(isa, ()))
    return Machine(
        name=hardware.name,
        flags=frozenset(flags),
        memory_gib=hardware.memory_gib,
        gpus=hardware.gpu.count if hardware.gpu else 0,
    )


def machine_of_probe(name: str, hardware: Hardware) -> Machine:
    """Return the machine that an instance showed itself to be."""
    return Machine(
        name=name,
        flags=frozenset(hardware.cpu_flags),
        memory_gib=hardware.memory_gib,
        gpus=len(hardware.gpus),
    )


def fit(benchmarks: Iterable[Benchmark], machine: Machine) -> Fit:
    """Say which benchmarks run on a machine, and of which settings they are without."""
    fitting: list[str] = []
    left_out: list[LeftOut] = []
    advice: list[LeftOut] = []
    for benchmark in benchmarks:
        lacking = [(need, reason) for need in benchmark.needs if (reason := _lacking(need, machine))]
        whole = [reason for need, reason in lacking if not need.setting and not need.advice]
        if whole:
            left_out.append(LeftOut(benchmark=benchmark.name, setting="", reason="; ".join(whole)))
            continue
        fitting.append(benchmark.name)
        for need, reason in lacking:
            told = LeftOut(benchmark=benchmark.name, setting=need.setting, reason=reason)
            (advice if need.advice else left_out).append(told)
    return Fit(benchmarks=tuple(fitting), left_out=tuple(left_out), advice=tuple(advice))


def _lacking(need: HardwareNeed, machine: Machine) -> str:
    """Say what a machine lacks of a need; nothing where it has all of it."""
    lacking = []
    if need.gpu and not machine.gpus:
        lacking.append("no NVIDIA GPU")
    if need.flags and not machine.flags & set(need.flags):
        lacking.append(f"no {need.flags_name or ' or '.join(need.flags)}")
    if machine.memory_gib is not None and machine.memory_gib < need.memory_gib * USABLE_MEMORY:
        lacking.append(f"{machine.memory_gib:g} GiB of memory, {need.memory_gib:g} are needed")
    if not lacking:
        return ""
    return f"{machine.name} has {', '.join(lacking)}" + (f": {need.advice}" if need.advice else "")
