"""What suits a workload: which benchmarks fit a machine, which types fit a recipe, and which types come near.

`fit` tells benchmarks and settings that a machine can run from those it cannot, by the description of its
type before a launch and by a probe of the instance after it. The plan calls `check_types` before anything is
launched, and names `successors` for a type that the Region does not offer.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark, HardwareNeed, Parameters
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Hardware, Image, InstanceType, Price
from dlcloud.model.money import exact

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.recipe import Recipe

NEURON_IMAGE = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
"""Source: AWS Neuron documentation, "Neuron DLAMI", SSM parameters, read 2026-11."""
OPEN_DRIVER_FROM = 7.5
"""The compute capability of Turing. Source: NVIDIA open GPU kernel modules, README."""
SUGGESTED = 3
FLAGS_OF_ISA = {
    "avx2": ("avx", "avx2", "fma"),
    "avx512": ("avx", "avx2", "fma", "avx512f", "avx512bw"),
    "vnni": ("avx512_vnni",),
    "bf16": ("avx512_bf16",),
    "amx": ("amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"),
}
"""Flags of /proc/cpuinfo by the words of the table of instance types; AMX implies AVX512_BF16."""
NO_PARAMETERS: Mapping[str, Parameters] = MappingProxyType({})
USABLE_MEMORY = 0.92
"""The least share of a type's memory that the kernel reports."""
SHOWN = 3
GPU_FAMILY = re.compile(r"(g|p)\d")
"""A name of an unknown type that has GPUs: the GPU types of AWS are P (large) and G."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """An instance type and its on-demand price, where one is known."""

    hardware: InstanceType
    price: Price | None

    @property
    def hourly_usd(self) -> Decimal | None:
        return self.price.hourly_usd if self.price else None


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


def missing_form(benchmark: Benchmark, parameters: Parameters, machine: Machine) -> str:
    """Return why a benchmark has no form for a machine, of whatever size; empty if it has one."""
    if machine.accelerators:
        return f"{machine.name} has {machine.accelerators}, which no bundled benchmark uses"
    needs = [need for need in benchmark.needs_for(parameters) if not need.setting and not need.advice]
    lacking = [reason for need in needs for reason in _missing_kind(need, machine)]
    return f"{machine.name} has {', '.join(dict.fromkeys(lacking))}" if lacking else ""


def check_types(
    recipe: "Recipe",
    types: Sequence[str],
    hardware: Mapping[str, InstanceType],
    image: Image,
    known_types: Callable[[], Sequence[KnownType]],
) -> list[str]:
    """Return what a rehearsal may ignore: the drivers that the image lacks.

    Args:
        recipe: The workload, and the image as the recipe names it.
        types: The types that can be launched.
        hardware: Their hardware; of a type without, nothing is checked.
        image: The image, resolved.
        known_types: Lists types, to suggest some that would do.

    Raises:
        CloudError: A type does not boot the image, has no driver in it, or the workload has no form for it.
    """
    chosen = [hardware[name] for name in types if name in hardware]
    _refuse_architectures(recipe, chosen, image)
    for entry in chosen:
        _refuse_workload(recipe, entry, known_types)
    lacking = [refusal for entry in chosen if (refusal := _missing_driver(recipe, entry, image))]
    if lacking and recipe.cloud != "local":
        raise CloudError("\n".join(reason for reason, _ in lacking), lacking[0][1])
    return [reason for reason, _ in lacking]


def suits_workload(recipe: "Recipe", entry: InstanceType) -> bool:
    """True if the workload runs on a type, as far as is known: a command may need anything."""
    benchmark = BENCHMARKS.get(recipe.workload.benchmark or "")
    if benchmark is None:
        return True
    parameters = {benchmark.name: recipe.workload.parameters}
    return bool(fit([benchmark], machine_of_type(entry), parameters).benchmarks)


def successors(name: str, types: Sequence[KnownType]) -> list[KnownType]:
    """Return the nearest current types, the nearest first: by GPUs, then tensor TFLOPS and price.

    For a type without GPUs: by vCPUs and price. For an unknown name: those of its letter that are spelled
    most like it, or the cheapest with GPUs if it is of a family that has them.
    """
    original = next((candidate for candidate in types if candidate.hardware.name == name), None)
    current = {
        candidate.hardware.name: candidate for candidate in types if candidate.hardware.status == "current"
    }
    typos = get_close_matches(name, list(current), n=SHOWN, cutoff=0.9)
    if original is None and not typos and GPU_FAMILY.match(name):
        gpus = [candidate for candidate in current.values() if candidate.hardware.gpu is not None]
        return sorted(gpus, key=lambda candidate: candidate.hourly_usd or math.inf)[:SHOWN]
    if original is None:
        family = [other for other in current if other[:1] == name[:1]]
        return [current[match] for match in get_close_matches(name, family, n=SHOWN, cutoff=0.5)]
    has_gpu = original.hardware.gpu is not None
    current.pop(name, None)
    alike = [candidate for candidate in current.values() if (candidate.hardware.gpu is not None) == has_gpu]
    return sorted(alike, key=lambda candidate: _distance(original, candidate))[:SHOWN]


def describe(candidate: KnownType) -> str:
    """Return a type in a few words: GPUs, tensor TFLOPS, price."""
    gpu = candidate.hardware.gpu
    processors = f"{candidate.hardware.vcpus} vCPUs"
    if gpu is not None:
        tensor = f", {gpu.count * gpu.tensor_tflops:g} tensor TFLOPS" if gpu.tensor_tflops else ""
        processors = f"{gpu.count}x {gpu.name}{tensor}"
    usd = f", {exact(candidate.hourly_usd)} USD/h" if candidate.hourly_usd is not None else ""
    return f"{candidate.hardware.name} ({processors}{usd})"


def _refuse_architectures(recipe: "Recipe", chosen: Sequence[InstanceType], image: Image) -> None:
    """Refuse types that the image does not boot; one cluster has one image."""
    wrong = [entry for entry in chosen if image.architecture not in entry.architectures]
    if not wrong or not image.architecture:
        return
    named = ", ".join(f"{entry.name} ({entry.architecture})" for entry in wrong)
    if recipe.instances.image == "auto" and len(wrong) < len(chosen):
        others = ", ".join(entry.name for entry in chosen if entry not in wrong)
        raise CloudError(
            f"{named} cannot boot the {image.architecture} image of {others}: a cluster has one image",
            "name types of one architecture; dlcloud bench launches each type by itself",
        )
    raise CloudError(
        f"{named} cannot boot image {image.image_id} ({image.architecture})",
        "name types of the image's architecture, or instances.image: auto",
    )


def _refuse_workload(
    recipe: "Recipe", entry: InstanceType, known_types: Callable[[], Sequence[KnownType]]
) -> None:
    """Refuse a type that the workload has no form for."""
    workload = recipe.workload
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is None:
        return
    reason = missing_form(benchmark, workload.parameters, machine_of_type(entry))
    if reason:
        would_do = _fitting(benchmark, workload.parameters, known_types())
        hint = f"types that would do: {would_do}; " if would_do else ""
        raise CloudError(
            f"{benchmark.name} has no form for this machine: {reason}",
            f"{hint}a workload.command runs anywhere",
        )


def _fitting(benchmark: Benchmark, parameters: Parameters, known_types: Sequence[KnownType]) -> str:
    """Return the cheapest current types on which a benchmark runs, in words."""
    needs_gpu = any(need.gpu for need in benchmark.needs_for(parameters))
    fitting = [
        candidate
        for candidate in known_types
        if candidate.hardware.status == "current" and candidate.hourly_usd is not None
        if candidate.hardware.has_nvidia_gpu == needs_gpu
        if fit([benchmark], machine_of_type(candidate.hardware), {benchmark.name: parameters}).benchmarks
    ]
    fitting.sort(key=lambda candidate: candidate.hourly_usd or Decimal(0))
    return ", ".join(describe(candidate) for candidate in fitting[:SUGGESTED])


def _missing_driver(recipe: "Recipe", entry: InstanceType, image: Image) -> tuple[str, str] | None:
    """Return what an image lacks to drive a type's accelerators, and what would do; None if nothing is known.

    Source: EC2 user guide, "NVIDIA drivers", table of drivers by instance type: g6f and gr6f need the GRID
    driver; AWS's Deep Learning AMIs have the data-center driver.
    """
    accelerator = entry.accelerator
    if accelerator is None:
        return None
    if recipe.instances.image != "auto":
        return _old_gpu(entry, image)
    if accelerator.is_neuron:
        reason = f"image auto has no driver for {accelerator.name} ({entry.name})"
        return reason, f"instances.image: {NEURON_IMAGE}, or an image of yours"
    if accelerator.share < 1:
        reason = f"{entry.name} has {accelerator.describe()}: a part of a GPU needs NVIDIA's GRID driver"
        return f"{reason}, which image auto lacks", "name an image with that driver in instances.image"
    if not entry.has_nvidia_gpu:
        reason = f"image auto has no driver for {accelerator.name} ({entry.name})"
        return reason, "name an image with its driver in instances.image"
    return _old_gpu(entry, image)


def _old_gpu(entry: InstanceType, image: Image) -> tuple[str, str] | None:
    """Return why an image with NVIDIA's open driver cannot drive an old GPU."""
    words = image.name.lower().replace("/", "-").replace(" ", "-").split("-")
    if "oss" not in words or entry.accelerator is None or not entry.has_nvidia_gpu:
        return None
    if _capability(entry.accelerator.compute_capability) >= OPEN_DRIVER_FROM:
        return None
    reason = f"image {image.image_id} has NVIDIA's open driver, which {entry.name} is too old for"
    return reason, "name an image with the proprietary driver in instances.image"


def _capability(text: str) -> float:
    """Read a compute capability; a GPU that the table lacks is a new one."""
    return float(text) if text else OPEN_DRIVER_FROM


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


def _distance(original: KnownType, other: KnownType) -> tuple[float, float, float]:
    """Return how far two types are apart: GPU counts first, then power and a higher price, then the price.

    Each is in factors of two, so that half as fast is as far as twice as dear. Cheaper is never farther.
    """
    mine, its = original.hardware.gpu, other.hardware.gpu
    usd = _doublings(original.hourly_usd, other.hourly_usd)
    if mine is None or its is None:
        power, counts = _doublings(original.hardware.vcpus, other.hardware.vcpus), 0.0
    else:
        power = _doublings(mine.tensor_tflops or mine.fp32_tflops, its.tensor_tflops or its.fp32_tflops)
        counts = abs(_doublings(mine.count, its.count))
    return (counts, abs(power) + max(0.0, usd), usd)


def _doublings(mine: Decimal | float | None, its: Decimal | float | None) -> float:
    """Return how often the first must be doubled to give the second; 2 where one is not known."""
    if not mine or not its:
        return 2.0
    return math.log2(float(its) / float(mine))
