"""Say which knobs there are, which values each has on a machine, and what a value means to a worker.

The first value of each knob is what stock TensorFlow does; the order of the knobs is that of the search.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..harness.heap import HEAP_VARIABLES, NOT_GLIBC
from .machine import ALLOCATORS, Machine

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What a processor needs for bf16 to be computed and not imitated; the last is an Arm processor's."""

FEWEST_TO_SPARE = 4
"""Physical cores from which on leaving one to the system is worth trying."""

# Source: compute capabilities of the CUDA C++ Programming Guide: tensor cores for fp16 from 7.0, for TF32 and
# bf16 from 8.0.
FP16_CAPABILITY, TF32_CAPABILITY = 7.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One position of a knob.

    Attributes:
        name: Such as `on`.
        environment: Variables of the worker.
        arguments: Arguments of training.train.
        needs: Positions that other knobs must be in, by knob.
        lacking: Why this machine cannot run it; None where it can.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    lacking: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What can be set; its first value is stock TensorFlow's."""

    name: str
    values: tuple[Value, ...]


NAMES = ("onednn", "precision", "allocator", "cpus", "intra", "inter", "layout", "xla", "host-threads")
"""Every knob of either device."""

Setting = Mapping[str, Value]
"""A value of each knob."""


def knobs_of(device: str, machine: Machine) -> tuple[Knob, ...]:
    """Return the knobs of training on a device."""
    return _gpu_knobs(machine) if device == "gpu" else _cpu_knobs(machine)


def stock(knobs: Sequence[Knob]) -> Setting:
    """Return what TensorFlow does where nobody sets anything, but for oneDNN and TF32, which are off.

    Both came after the stock TensorFlow that the articles compare with, and both are knobs.
    """
    return {knob.name: knob.values[0] for knob in knobs}


def environment_of(setting: Setting) -> dict[str, str]:
    """Return the variables of a setting's worker."""
    changes = {name: text for value in setting.values() for name, text in value.environment.items()}
    if "LD_PRELOAD" in changes and os.environ.get("LD_PRELOAD"):
        changes["LD_PRELOAD"] += f":{os.environ['LD_PRELOAD']}"
    return changes


def arguments_of(setting: Setting) -> dict[str, Any]:
    """Return the arguments of training.train that a setting means."""
    return {name: given for value in setting.values() for name, given in value.arguments.items()}


def describe(setting: Setting, knobs: Sequence[Knob]) -> str:
    """Return what a setting does otherwise than stock: `onednn=on precision=bf16-policy`."""
    usual = stock(knobs)
    changed = [f"{name}={value.name}" for name, value in setting.items() if value != usual.get(name)]
    return " ".join(changed) or "as stock"


def _cpu_knobs(machine: Machine) -> tuple[Knob, ...]:
    return (
        Knob(name="onednn", values=tuple(_onednn(name) for name in ("off", "on"))),
        Knob(name="precision", values=_cpu_precisions(machine.flags)),
        Knob(name="allocator", values=_allocators(machine)),
        Knob(name="cpus", values=(Value(name="all"), _one_per_core(machine))),
        Knob(name="intra", values=_intra(machine)),
        Knob(name="inter", values=_inter(machine)),
        Knob(name="layout", values=(_layout("NHWC"), _layout("NCHW", {"onednn": "on"}))),
        _xla(),
    )


def _onednn(name: str) -> Value:
    return Value(name=name, environment={"TF_ENABLE_ONEDNN_OPTS": "1" if name == "on" else "0"})


def _cpu_precisions(flags: Collection[str]) -> tuple[Value, ...]:
    lacking = None if BF16_FLAGS & set(flags) else "this processor has neither AVX512_BF16 nor AMX"
    mixed = [
        _precision(name, lacking, {"onednn": "on"}) for name in ("bf16-rewrite", "bf16-policy")
    ]  # Without oneDNN bf16 is imitated, and ten times as slow as fp32.
    return (_precision("fp32"), *mixed)


def _precision(name: str, lacking: str | None = None, needs: Mapping[str, str] | None = None) -> Value:
    return Value(name=name, arguments={"precision": name}, lacking=lacking, needs=needs or {})


def _allocators(machine: Machine) -> tuple[Value, ...]:
    installed = machine.allocators
    kept = Value(name="glibc-heap", environment=HEAP_VARIABLES, lacking=None if machine.glibc else NOT_GLIBC)
    others = [
        Value(
            name=name,
            environment={"LD_PRELOAD": installed.get(name, "")},
            lacking=None if name in installed else f"{name} is not installed",
        )
        for name in ALLOCATORS
    ]
    return (Value(name="glibc"), kept, *others)


def _one_per_core(machine: Machine) -> Value:
    lacking = None if machine.threads_per_core > 1 else "no core has hyper-threads here"
    return Value(name="one-per-core", arguments={"cpus": list(machine.cores)}, lacking=lacking)


def _intra(machine: Machine) -> tuple[Value, ...]:
    """Return TensorFlow's own choice, one thread a core, and one core left to the system."""
    cores = len(machine.cores)
    same = f"TensorFlow takes {cores} by itself" if cores == machine.logical else None
    spared = None if cores >= FEWEST_TO_SPARE else f"{cores} cores leave none to spare"
    return (
        Value(name="default"),
        Value(name="physical", arguments={"intra": cores}, lacking=same),
        Value(name="one-spared", arguments={"intra": max(1, cores - 1)}, lacking=spared),
    )


def _inter(machine: Machine) -> tuple[Value, ...]:
    same = "TensorFlow takes 2 by itself" if machine.logical == 2 else None  # noqa: PLR2004 - two is two
    return (
        Value(name="default"),
        Value(name="1", arguments={"inter": 1}),
        Value(name="2", arguments={"inter": 2}, lacking=same),
    )


def _layout(name: str, needs: Mapping[str, str] | None = None) -> Value:
    return Value(name=name, arguments={"layout": name}, needs=needs or {})


def _xla() -> Knob:
    return Knob(name="xla", values=(Value(name="off"), Value(name="on", arguments={"xla": True})))


def _gpu_knobs(machine: Machine) -> tuple[Knob, ...]:
    have = machine.compute_capability
    what = f"{machine.gpu} (compute capability {have})"
    fp16 = None if have >= FP16_CAPABILITY else f"{what} has no tensor cores"
    tf32 = None if have >= TF32_CAPABILITY else f"{what} has no tensor cores for TF32 and bf16"
    lacking = {"tf32": tf32, "fp16-policy": fp16, "fp16-rewrite": fp16, "bf16-policy": tf32}
    precisions = (_precision("fp32"), *(_precision(name, reason) for name, reason in lacking.items()))
    asynchronous = {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}
    private = {"TF_GPU_THREAD_MODE": "gpu_private"}
    return (
        Knob(name="precision", values=precisions),
        Knob(name="layout", values=(_layout("NHWC"), _layout("NCHW"))),
        _xla(),
        Knob(name="allocator", values=(Value(name="bfc"), Value(name="async", environment=asynchronous))),
        Knob(name="host-threads", values=(Value(name="shared"), Value(name="private", environment=private))),
    )
