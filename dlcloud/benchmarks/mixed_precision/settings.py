"""Say which settings there are and what each needs of the machine; imports no framework.

A setting is a precision and any number of knobs, joined by `+`: `fp32`, `bf16+channels_last+compile`.
"""

import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Self

from ..harness import hardware
from ..harness.heap import HEAP_VARIABLES, NOT_GLIBC, is_glibc

MIB = 1 << 20

CPU_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What a processor needs for bf16 to be computed and not imitated; the last is Arm's."""


class Precision(Enum):
    """What convolutions and products are computed in; weights stay in fp32 and are updated there."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Return the first compute capability of NVIDIA GPUs whose tensor cores compute in it.

        Source: CUDA C++ Programming Guide, "Arithmetic instructions" and "Warp matrix functions".
        """
        return {Precision.FP32: (0, 0), Precision.FP16: (7, 0)}.get(self, (8, 0))


class Knob(Enum):
    """What else may be set."""

    CHANNELS_LAST = "channels_last"
    """Each pixel's channels lie side by side in memory (NHWC)."""

    COMPILE = "compile"
    """torch.compile joins the operations between convolutions into kernels of its own."""

    DEPTHWISE = "depthwise"
    """Gradients of depthwise convolutions avoid oneDNN's slow kernels (depthwise.py)."""

    FUSED = "fused"
    """The optimizer updates a weight in one pass over it."""

    HEAP = "heap"
    """The C library keeps freed memory, in huge pages, for the next step, where it would give back every
    large tensor to the kernel and have it filled with zeros anew."""

    FLUSH = "flush"
    """Numbers too small for the normal range count as 0."""

    PINNED = "pinned"
    """Each thread stays on a core of its own."""


CPU_KNOBS = frozenset({Knob.DEPTHWISE, Knob.HEAP, Knob.FLUSH, Knob.PINNED})

PYTORCH_KNOBS = frozenset({Knob.DEPTHWISE, Knob.FUSED})
"""What Keras has no word for."""

# Source: OpenMP 5.0, 6.4 and 6.5.
PINNED_VARIABLES = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A precision with its knobs."""

    precision: Precision
    knobs: frozenset[Knob] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bf16+channels_last`.

        Raises:
            ValueError: It names no precision, or a knob that there is not, or one twice.
        """
        first, *rest = text.split("+")
        precisions, knobs = {each.value: each for each in Precision}, {each.value: each for each in Knob}
        if first not in precisions:
            raise ValueError(f"a setting begins with one of {', '.join(precisions)}; this is {text!r}")
        unknown = next((knob for knob in rest if knob not in knobs), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} in {text!r} is none of {', '.join(knobs)}")
        if len(set(rest)) != len(rest):
            raise ValueError(f"{text!r} says something twice")
        return cls(precision=precisions[first], knobs=frozenset(knobs[knob] for knob in rest))

    @property
    def name(self) -> str:
        """Return the text that it is written as, its knobs in the order of Knob."""
        return "+".join([self.precision.value, *(knob.value for knob in Knob if knob in self.knobs)])

    @property
    def reduced(self) -> bool:
        """Tell whether it computes in fewer bits than FP32 has."""
        return self.precision is not Precision.FP32

    def environment(self, threads: int) -> Mapping[str, str]:
        """Return the variables that a process needs for it."""
        heap = HEAP_VARIABLES if Knob.HEAP in self.knobs else {}
        pinned = PINNED_VARIABLES if Knob.PINNED in self.knobs else {}
        return {"OMP_NUM_THREADS": str(threads), **heap, **pinned}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the settings depend on.

    Attributes:
        cpu_flags: As hardware.cpu_flags gives them.
        gpu: Name of the GPU that is used; None where the CPU is.
        compute_capability: Of the GPU.
        compiler: Whether torch.compile finds a C++ compiler and Python's headers.
        glibc: Whether the C library is glibc, whose allocator has the variables above.
    """

    cpu_flags: frozenset[str] = frozenset()
    gpu: str | None = None
    compute_capability: tuple[int, int] = (0, 0)
    compiler: bool = True
    glibc: bool = True

    @property
    def device(self) -> str:
        """Return the name that PyTorch has for where the work runs."""
        return "cpu" if self.gpu is None else "cuda"

    def lacking(self, setting: Setting) -> str | None:
        """Say why a setting cannot run here; None where it can."""
        precision = self._lacking_on_gpu(setting) if self.gpu else self._lacking_on_cpu(setting)
        if precision is None and Knob.COMPILE in setting.knobs and not self.compiler:
            return "torch.compile needs a C++ compiler and Python's headers: apt-get install g++ python3-dev"
        return precision

    def _lacking_on_cpu(self, setting: Setting) -> str | None:
        if setting.precision in (Precision.TF32, Precision.FP16):
            return f"training in {setting.precision.value} needs a GPU with tensor cores; none is used here"
        if setting.precision is Precision.BF16 and not CPU_BF16_FLAGS & self.cpu_flags:
            return "this processor has neither AVX512_BF16 nor AMX"
        if Knob.HEAP in setting.knobs and not self.glibc:
            return NOT_GLIBC
        return None

    def _lacking_on_gpu(self, setting: Setting) -> str | None:
        needed = setting.precision.compute_capability
        if self.compute_capability < needed:
            return (
                f"{self.gpu} has compute capability {_dotted(self.compute_capability)}; tensor cores for "
                f"{setting.precision.value} begin with {_dotted(needed)}"
            )
        idle = sorted(knob.value for knob in CPU_KNOBS & setting.knobs)
        return f"{' and '.join(idle)} would change nothing on a GPU" if idle else None


def this_machine(device: str) -> Machine:
    """Look at this machine; `device` is cpu, cuda or auto.

    Raises:
        LookupError: A GPU is asked for, and the driver shows none.
    """
    gpus = [] if device == "cpu" else hardware.gpus()
    if device == "cuda" and not gpus:
        raise LookupError("--device cuda: nvidia-smi shows no GPU on this machine")
    major, _, minor = gpus[0]["compute_capability"].partition(".") if gpus else ("0", "", "0")
    return Machine(
        cpu_flags=frozenset(hardware.cpu_flags()),
        gpu=gpus[0]["name"] if gpus else None,
        compute_capability=(int(major), int(minor)),
        compiler=shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").exists(),
        glibc=is_glibc(),
    )


def available_mib(machine: Machine) -> float:
    """Return the memory that the settings may share: of the GPU, or what the kernel can still give.

    Source: proc_meminfo(5), MemAvailable.
    """
    if machine.gpu:
        return float(hardware.gpus()[0]["memory_mib"])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return hardware.memory_bytes() / MIB
    kib = {line.partition(":")[0]: line.split()[1] for line in lines}
    return int(kib["MemAvailable"]) / 1024


def defaults(machine: Machine, engine: str, *, depthwise: bool) -> list[Setting]:
    """Return the settings that tell most on a machine, the baseline first.

    Args:
        machine: Where they run.
        engine: pytorch or keras.
        depthwise: Whether the network has depthwise convolutions.
    """
    names = (GPU_DEFAULTS if machine.gpu else CPU_DEFAULTS)[engine]
    chosen = [Setting.parse(name) for name in names]
    if depthwise:
        return chosen
    return [replace(each, knobs=each.knobs - {Knob.DEPTHWISE}) for each in chosen]


CPU_DEFAULTS = {
    "pytorch": (
        "fp32",
        "fp32+channels_last+depthwise+heap",
        "bf16",
        "bf16+channels_last",
        "bf16+channels_last+depthwise+heap",
    ),
    "keras": ("fp32", "fp32+channels_last+heap", "bf16", "bf16+channels_last", "bf16+channels_last+heap"),
}
GPU_DEFAULTS = {
    "pytorch": (
        *("fp32", "tf32", "bf16", "fp16", "tf32+channels_last", "bf16+channels_last"),
        *("fp16+channels_last", "bf16+channels_last+compile+fused", "fp16+channels_last+compile+fused"),
    ),
    "keras": ("fp32", "tf32", "bf16", "fp16", "bf16+channels_last", "fp16+channels_last"),
}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
