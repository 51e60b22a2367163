"""The decision which benchmarks fit a machine, by its instance type or by a probe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dlcloud.benchmarks.harness.benchmark import Benchmark, HardwareNeed, Parameters
from dlcloud.model.hardware import Hardware
from dlcloud.model.instance import InstanceType
from dlcloud.planning.left_out import LeftOut

FLAGS_OF_ISA = {
    "avx2": ("avx", "avx2", "fma"),
    "avx512": ("avx512f", "avx512bw"),
    "vnni": ("avx512_vnni",),
    "bf16": ("avx512_bf16",),
    "amx": ("amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"),
}
"""Flags of /proc/cpuinfo by the words of the table of instance types; AMX implies AVX512_BF16."""

NO_PARAMETERS: Mapping[str, Parameters] = MappingProxyType({})

USABLE_MEMORY = 0.92
"""The least share of a type's memory that the kernel reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that benchmarks need. `name` is its name in reasons.

    `flags` are None, and `architecture` is empty, where they are not known; `gpus` are NVIDIA's.
    `accelerators` describes others, which no bundled benchmark uses.
    """

    name: str
    flags: frozenset[str] | None
    memory_gib: float | None
    gpus: int
    architecture: str = ""
    accelerators: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The benchmarks that run on a machine, those left out, and those that gain less there."""

    benchmarks: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    advice: tuple[LeftOut, ...]


def machine_of_type(hardware: InstanceType) -> Machine:
    """Return the machine that an instance type specifies."""
    flags = frozenset(flag for isa in hardware.cpu_isa for flag in FLAGS_OF_ISA.get(isa, ()))
    accelerator = hardware.accelerator
    return Machine(
        name=hardware.name,
        flags=flags if hardware.cpu_isa else None,
        memory_gib=hardware.memory_gib,
        gpus=accelerator.count if accelerator and hardware.has_nvidia_gpu else 0,
        architecture=hardware.architecture,
        accelerators=accelerator.describe() if accelerator and not hardware.has_nvidia_gpu else "",
    )


def machine_of_probe(name: str, hardware: Hardware) -> Machine:
    """Return the machine that a probe of an instance reported."""
    return Machine(
        name=name,
        flags=frozenset(hardware.cpu_flags),
        memory_gib=hardware.memory_gib,
        gpus=len(hardware.gpus),
    )


def fit(
    benchmarks: Iterable[Benchmark], machine: Machine, parameters: Mapping[str, Parameters] = NO_PARAMETERS
) -> Fit:
    """Return which benchmarks run on a machine, and without which settings; `parameters` are by benchmark."""
    fitting: list[str] = []
    left_out: list[LeftOut] = []
    advice: list[LeftOut] = []
    for benchmark in benchmarks:
        needs = benchmark.needs_for(parameters.get(benchmark.name, {}))
        lacking = [(need, reason) for need in needs if (reason := _lacking(need, machine))]
        whole = [reason for need, reason in lacking if not need.setting and not need.advice]
        if machine.accelerators:
            whole = [missing_form(benchmark, {}, machine)]
        if whole:
            left_out.append(LeftOut(benchmark=benchmark.name, setting="", reason="; ".join(whole)))
            continue
        fitting.append(benchmark.name)
        for need, reason in lacking:
            reasons = advice if need.advice else left_out
            reasons.append(LeftOut(benchmark=benchmark.name, setting=need.setting, reason=reason))
    return Fit(benchmarks=tuple(fitting), left_out=tuple(left_out), advice=tuple(advice))


def missing_form(benchmark: Benchmark, parameters: Parameters, machine: Machine) -> str:
    """Return why a benchmark has no form for a machine, of whatever size; empty if it has one."""
    if machine.accelerators:
        return f"{machine.name} has {machine.accelerators}, which no bundled benchmark uses"
    needs = [need for need in benchmark.needs_for(parameters) if not need.setting and not need.advice]
    lacking = [reason for need in needs for reason in _missing_kind(need, machine)]
    return f"{machine.name} has {', '.join(dict.fromkeys(lacking))}" if lacking else ""


def _missing_kind(need: HardwareNeed, machine: Machine) -> list[str]:
    lacking = []
    if need.gpu and not machine.gpus:
        lacking.append("no NVIDIA GPU")
    if need.architecture and machine.architecture not in {"", need.architecture}:
        lacking.append(f"architecture {machine.architecture}, {need.architecture} is needed")
    return lacking


def _lacking(need: HardwareNeed, machine: Machine) -> str:
    """Return what a machine lacks of a need; empty if it has all of it."""
    lacking = _missing_kind(need, machine)
    if need.flags and machine.flags is not None and not machine.flags & set(need.flags):
        lacking.append(f"no {need.flags_name or ' or '.join(need.flags)}")
    if machine.memory_gib is not None and machine.memory_gib < need.memory_gib * USABLE_MEMORY:
        lacking.append(f"{machine.memory_gib:g} GiB of memory, {need.memory_gib:g} are needed")
    if not lacking:
        return ""
    return f"{machine.name} has {', '.join(lacking)}" + (f": {need.advice}" if need.advice else "")
