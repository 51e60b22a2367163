"""The decision which benchmarks fit a machine, by its instance type or by a probe."""

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
"""Flags of /proc/cpuinfo by the words of the table of instance types; AMX implies AVX512_BF16."""

USABLE_MEMORY = 0.92
"""The least share of a type's memory that the kernel reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that benchmarks need. `name` is its name in reasons."""

    name: str
    flags: frozenset[str]
    memory_gib: float | None
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A setting that is not run, and why; `setting` is empty if it is the whole benchmark."""

    benchmark: str
    setting: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The benchmarks that run on a machine, those left out, and those that gain less there."""

    benchmarks: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    advice: tuple[LeftOut, ...]


def machine_of_type(hardware: InstanceType) -> Machine:
    """Return the machine that an instance type specifies."""
    flags = (flag for isa in hardware.cpu_isa for flag in FLAGS_OF_ISA.get(isa, ()))
    return Machine(
        name=hardware.name,
        flags=frozenset(flags),
        memory_gib=hardware.memory_gib,
        gpus=hardware.gpu.count if hardware.gpu else 0,
    )


def machine_of_probe(name: str, hardware: Hardware) -> Machine:
    """Return the machine that a probe of an instance reported."""
    return Machine(
        name=name,
        flags=frozenset(hardware.cpu_flags),
        memory_gib=hardware.memory_gib,
        gpus=len(hardware.gpus),
    )


def fit(benchmarks: Iterable[Benchmark], machine: Machine) -> Fit:
    """Return which benchmarks run on a machine, and without which settings."""
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
            reasons = advice if need.advice else left_out
            reasons.append(LeftOut(benchmark=benchmark.name, setting=need.setting, reason=reason))
    return Fit(benchmarks=tuple(fitting), left_out=tuple(left_out), advice=tuple(advice))


def _lacking(need: HardwareNeed, machine: Machine) -> str:
    """Return what a machine lacks of a need; empty if it has all of it."""
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
