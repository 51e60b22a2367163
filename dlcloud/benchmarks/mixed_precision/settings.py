"""The networks and settings of training: what each needs, how it is proven, and the options that choose them.

A setting is a precision and any number of optimizations, joined by `+`: `fp32`, `bf16+channels_last+compile`.
It is proven if the kernels that ran compute in its precision. The launcher's catalog, the program and its
workers read this module; it imports no framework.
"""

import argparse
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from ..harness import hardware, usage
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    THREADS,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    positive,
)
from ..harness.case import VariantError, WorkerVariant
from ..harness.hardware import HEAP_VARIABLES, NOT_GLIBC, is_glibc
from ..harness.kernels import read_primitives, uses_tensor_cores
from ..harness.records import Recorder

# Height and width in pixels. Source: the papers in pytorch_engine.py; for EfficientNet the authors' program.
IMAGE_SIZES = {
    "vgg16": 224,
    "mobilenet": 224,
    "resnet50": 224,
    "efficientnet-b0": 224,
    "efficientnet-b1": 240,
    "efficientnet-b2": 260,
    "efficientnet-b3": 300,
    "efficientnet-b4": 380,
    "efficientnet-b5": 456,
    "tiny": 32,
    "digits": 8,
}

DEPTHWISE_NETWORKS = frozenset(
    name for name in IMAGE_SIZES if name.startswith(("mobilenet", "efficientnet", "tiny"))
)
"""Networks with depthwise convolutions."""

DIGITS = "digits"
"""The network that is trained to the end, on real images."""


class TrainingPrecision(Enum):
    """What convolutions and products are computed in; weights stay in fp32 and are updated there."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The first compute capability of NVIDIA GPUs whose tensor cores compute in it.

        Source: CUDA C++ Programming Guide, "Arithmetic instructions" and "Warp matrix functions".
        """
        return {TrainingPrecision.FP32: (0, 0), TrainingPrecision.FP16: (7, 0)}.get(self, (8, 0))


class Optimization(Enum):
    """What else a setting may turn on."""

    CHANNELS_LAST = "channels_last"  # each pixel's channels lie side by side in memory (NHWC)
    COMPILE = "compile"  # torch.compile joins the operations between convolutions into its own kernels
    DEPTHWISE = "depthwise"  # gradients avoid oneDNN's slow kernels for depthwise convolutions
    FUSED = "fused"  # the optimizer updates a weight in one pass over it
    HEAP = "heap"  # the C library keeps freed memory for the next step (hardware.HEAP_VARIABLES)
    FLUSH = "flush"  # numbers too small for the normal range count as 0
    PINNED = "pinned"  # each thread stays on its own core


CPU_ONLY = frozenset({Optimization.DEPTHWISE, Optimization.HEAP, Optimization.FLUSH, Optimization.PINNED})

PYTORCH_ONLY = frozenset({Optimization.DEPTHWISE, Optimization.FUSED})
"""Optimizations that Keras does not offer."""

# Source: OpenMP 5.0, 6.4 and 6.5.
PINNED_VARIABLES = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetting:
    """A precision with its optimizations."""

    precision: TrainingPrecision
    optimizations: frozenset[Optimization] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bf16+channels_last`.

        Raises:
            ValueError: The precision or an optimization is unknown, or an optimization is repeated.
        """
        first, *names = text.split("+")
        precisions = {precision.value: precision for precision in TrainingPrecision}
        optimizations = {optimization.value: optimization for optimization in Optimization}
        if first not in precisions:
            raise ValueError(f"a setting begins with one of {', '.join(precisions)}; this is {text!r}")
        unknown = next((name for name in names if name not in optimizations), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} in {text!r} is none of {', '.join(optimizations)}")
        if len(set(names)) != len(names):
            raise ValueError(f"{text!r} repeats an optimization")
        return cls(
            precision=precisions[first], optimizations=frozenset(optimizations[name] for name in names)
        )

    @property
    def name(self) -> str:
        """Its text, the optimizations in the order of the enum."""
        names = [optimization.value for optimization in Optimization if optimization in self.optimizations]
        return "+".join([self.precision.value, *names])

    @property
    def is_reduced(self) -> bool:
        """True if it computes in fewer bits than FP32 has."""
        return self.precision is not TrainingPrecision.FP32

    def environment(self, threads: int) -> Mapping[str, str]:
        heap = HEAP_VARIABLES if Optimization.HEAP in self.optimizations else {}
        pinned = PINNED_VARIABLES if Optimization.PINNED in self.optimizations else {}
        return {"OMP_NUM_THREADS": str(threads), **heap, **pinned}


BASELINE = TrainingSetting(precision=TrainingPrecision.FP32)

LEARNING_RATES = {"sgd": 1e-3, "adam": 1e-4}
"""Small, so that random weights and one batch keep the loss finite; for Adam the article's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What a worker trains."""

    framework: str  # pytorch or keras
    network: str  # one of IMAGE_SIZES
    setting: TrainingSetting
    batch: int  # images a step
    size: int  # height and width of the images
    device: str  # cpu or cuda
    threads: int
    optimizer: str  # sgd (with momentum) or adam
    small_head: bool  # put global pooling, dropout and one dense layer on the network, not the published head
    seed: int  # of the weights and of synthetic images
    learning_rate: float  # of the optimizer; one of LEARNING_RATES unless given
    classes: int = 1000  # how many logits

    @classmethod
    def parse(cls, *, setting: str, **arguments: Any) -> Self:  # noqa: ANN401 - the other attributes
        arguments.setdefault("learning_rate", LEARNING_RATES[arguments["optimizer"]])
        return cls(setting=TrainingSetting.parse(setting), **arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapabilities:
    """What decides which settings a machine can run."""

    cpu_flags: frozenset[str] = frozenset()  # as hardware.cpu_flags gives them
    gpu: str | None = None  # name of the GPU that is used; None on a CPU
    compute_capability: tuple[int, int] = (0, 0)
    has_compiler: bool = True  # torch.compile finds a C++ compiler and Python's headers
    has_glibc: bool = True  # the C library is glibc, whose allocator has the variables of hardware.py

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"

    def explain_unsupported(self, setting: TrainingSetting) -> str | None:
        reason = self._unsupported_on_gpu(setting) if self.gpu else self._unsupported_on_cpu(setting)
        if reason is None and Optimization.COMPILE in setting.optimizations and not self.has_compiler:
            return "torch.compile needs a C++ compiler and Python's headers: apt-get install g++ python3-dev"
        return reason

    def _unsupported_on_cpu(self, setting: TrainingSetting) -> str | None:
        precision = setting.precision
        if precision in (TrainingPrecision.TF32, TrainingPrecision.FP16):
            return f"training in {precision.value} needs a GPU with tensor cores; none is used here"
        if precision is TrainingPrecision.BF16 and not hardware.BF16_FLAGS & self.cpu_flags:
            return hardware.NO_BF16
        if Optimization.HEAP in setting.optimizations and not self.has_glibc:
            return NOT_GLIBC
        return None

    def _unsupported_on_gpu(self, setting: TrainingSetting) -> str | None:
        required = setting.precision.compute_capability
        if self.compute_capability < required:
            return (
                f"{self.gpu} has compute capability {_dotted(self.compute_capability)}; tensor cores for "
                f"{setting.precision.value} begin with {_dotted(required)}"
            )
        idle = sorted(optimization.value for optimization in CPU_ONLY & setting.optimizations)
        return f"{' and '.join(idle)} would change nothing on a GPU" if idle else None


def detect_capabilities(device: str) -> DeviceCapabilities:
    """Examine this machine; `device` is cpu, cuda or auto.

    Raises:
        LookupError: `device` is cuda, and the driver shows no GPU.
    """
    gpus = [] if device == "cpu" else hardware.gpus()
    if device == "cuda" and not gpus:
        raise LookupError("--device cuda: nvidia-smi shows no GPU on this machine")
    major, _, minor = gpus[0]["compute_capability"].partition(".") if gpus else ("0", "", "0")
    return DeviceCapabilities(
        cpu_flags=frozenset(hardware.cpu_flags()),
        gpu=gpus[0]["name"] if gpus else None,
        compute_capability=(int(major), int(minor)),
        has_compiler=shutil.which("g++") is not None
        and Path(sysconfig.get_path("include"), "Python.h").exists(),
        has_glibc=is_glibc(),
    )


def available_mib(capabilities: DeviceCapabilities) -> float:
    """Return the memory that settings may share: the GPU's, or what processes can still take."""
    if capabilities.gpu:
        return float(hardware.gpus()[0]["memory_mib"])
    free = usage.free_bytes()
    return (hardware.memory_bytes() if free is None else free) / usage.MIB


def default_settings(
    capabilities: DeviceCapabilities, engine: str, *, depthwise: bool
) -> list[TrainingSetting]:
    """Return the settings that show most on a machine, the baseline first.

    Networks with `depthwise` convolutions have their own optimizations.
    """
    names = (GPU_DEFAULTS if capabilities.gpu else CPU_DEFAULTS)[engine]
    settings = [TrainingSetting.parse(name) for name in names]
    if depthwise:
        return settings
    without = {Optimization.DEPTHWISE}
    return [replace(setting, optimizations=setting.optimizations - without) for setting in settings]


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


RECORDED_KERNELS = 12
"""The record names this many kernels, those that ran most often."""

SHARE_OF_MEMORY = 0.85

HAS_BF16 = re.compile(r"avx512_core_bf16|avx512_core_fp16|avx10|amx|avx2_vnni_2|sve|asimd|acl")
"""Instruction sets with bf16, in kernels' names. Kernels for others take bf16, too, and compute in fp32."""

ONEDNN_TYPES = {
    TrainingPrecision.FP32: "f32",
    TrainingPrecision.BF16: "bf16",
    TrainingPrecision.FP16: "f16",
}

CUDA_ARITHMETIC = re.compile(r"gemm|conv|cudnn|cutlass|xmma|nvjet|fprop|dgrad|wgrad|winograd", re.IGNORECASE)
CUDA_HELPER = re.compile(
    r"^triton_(?!tem)|nchwToNhwc|nhwcToNchw|convertTensor|splitKreduce|transform|elementwise|copy",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """The kernels of a step that do the arithmetic."""

    runs: Counter[str]  # how often each kernel ran, as the library names it
    in_precision: int  # how many of the runs computed in the precision asked for

    @property
    def total(self) -> int:
        return self.runs.total()


def count_onednn_kernels(log: Iterable[str], precision: TrainingPrecision) -> KernelCounts:
    asked = ONEDNN_TYPES[precision]
    runs: Counter[str] = Counter()
    in_precision = 0
    for primitive in read_primitives(log):
        if not primitive.executed:
            continue
        types = set(primitive.types)
        runs[f"{primitive.kind} {primitive.kernel} {'/'.join(sorted(types))}"] += 1
        # A gradient may be summed in fp32.
        native = all(HAS_BF16.search(part) for part in primitive.kernel.split("+"))
        in_precision += types == {"f32"} if asked == "f32" else asked in types and native
    return KernelCounts(runs=runs, in_precision=in_precision)


def count_cuda_kernels(names: Iterable[str], precision: TrainingPrecision) -> KernelCounts:
    """Count the kernels of convolutions and products among the names of CUDA kernels.

    For FP32 those count that use no tensor core, for the others those that do.
    """
    arithmetic = [name for name in names if CUDA_ARITHMETIC.search(name) and not CUDA_HELPER.search(name)]
    on_tensor_cores = sum(uses_tensor_cores(name) for name in arithmetic)
    is_fp32 = precision is TrainingPrecision.FP32
    return KernelCounts(
        runs=Counter(name[:120] for name in arithmetic),
        in_precision=len(arithmetic) - on_tensor_cores if is_fp32 else on_tensor_cores,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenSetting:
    """A setting that computes in what its name says."""

    setting: TrainingSetting
    memory_mib: float  # the most that its process took of the device's memory
    facts: Mapping[str, Any]  # what the proof showed, for the record


def prove_settings(
    case: str,
    settings: Sequence[TrainingSetting],
    make: Callable[[TrainingSetting], WorkerVariant],
    recorder: Recorder,
) -> list[ProvenSetting]:
    """Run each setting briefly in its own process and keep those that compute in their precision.

    A setting whose kernels do not is skipped, with the kernels that ran; one that cannot run is a failure.
    """
    proven = []
    for setting in settings:
        variant = make(setting)
        try:
            facts = dict(variant.start())
        except VariantError as error:
            recorder.failure(case, setting.name, str(error))
            continue
        finally:
            variant.close()
        reason = explain_refutation(setting, facts)
        if reason is None:
            proven.append(_read_facts(setting, facts))
        elif setting.is_reduced:
            recorder.skip(case, setting.name, reason)
        else:
            recorder.failure(case, setting.name, reason)
    return proven


def explain_refutation(setting: TrainingSetting, facts: Mapping[str, Any]) -> str | None:
    """Return why the kernels that ran show that a setting is not what it says; None if they confirm it."""
    in_precision, total = facts["kernels_in_precision"], facts["kernels_in_all"]
    kernels = ", ".join(list(facts["kernels"])[:3]) or "no kernel"
    if setting.is_reduced and not in_precision:
        return f"not one of {total} kernels computed in {setting.precision.value}; the library ran {kernels}"
    if not setting.is_reduced and in_precision != total:
        return f"{total - in_precision} of {total} kernels did not compute in fp32; the library ran {kernels}"
    return None


def _read_facts(setting: TrainingSetting, facts: Mapping[str, Any]) -> ProvenSetting:
    compiles = Optimization.COMPILE in setting.optimizations
    unchanged = {name: value for name, value in facts.items() if name not in ("first_step_s", "memory_mib")}
    return ProvenSetting(
        setting=setting,
        memory_mib=facts["memory_mib"],
        facts={
            **unchanged,
            "kernels": dict(list(facts["kernels"].items())[:RECORDED_KERNELS]),
            "compile_and_first_step_s" if compiles else "cold_first_step_s": facts["first_step_s"],
            "device_memory_mib": facts["memory_mib"],
        },
    )


def group_by_memory(
    proven: Sequence[ProvenSetting], available_mib: float
) -> tuple[list[list[ProvenSetting]], list[ProvenSetting]]:
    """Divide settings into groups that fit into memory side by side, each with the baseline, the first.

    Returns the groups, and the settings that fit in none.
    """
    baseline, *candidates = proven
    room = SHARE_OF_MEMORY * available_mib - baseline.memory_mib
    too_large = [candidate for candidate in candidates if candidate.memory_mib > room]
    groups: list[list[ProvenSetting]] = []
    for candidate in candidates:
        if candidate in too_large:
            continue
        used = sum(member.memory_mib for member in groups[-1][1:]) if groups else room
        if used + candidate.memory_mib > room:
            groups.append([baseline])
        groups[-1].append(candidate)
    return groups or [[baseline]], too_large


IMAGENET = 1_281_167
"""Training images of ImageNet's 1,000 classes. Source: Russakovsky et al. 2014, table 2."""

ENGINES = {"pytorch": ("torch",), "keras": ("torch", "keras")}
"""The modules that each engine needs."""

OPTIMIZATIONS = ", ".join(f"+{optimization.value}" for optimization in Optimization)

WARM_UP_S = 60.0
"""Steps of the large networks take seconds."""


def _setting(text: str) -> str:
    """Read a setting and return its name, so that two spellings of one are one."""
    try:
        return TrainingSetting.parse(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


ENTRY = Benchmark(
    name="mixed_precision",
    module="benchmarks.mixed_precision",
    requirements="mixed_precision.txt",
    summary="Compare FP32 with mixed-precision training of image networks in PyTorch or Keras: "
    "time of a step and an epoch, memory, kernels, and loss.",
    options=(
        Option(
            "network",
            "networks with random weights, or digits: a small network trained to the end on real ones",
            choices=tuple(IMAGE_SIZES),
            default=("resnet50",),
            metavar="NAME",
            many=True,
            selects=True,
        ),
        Option(
            "engine",
            "pytorch, or keras on it with its policies",
            choices=tuple(ENGINES),
            default=("pytorch",),
            many=True,
            selects=True,
        ),
        Option(
            "setting",
            f"fp32, tf32, bf16 or fp16, followed by any of {OPTIMIZATIONS}; fp32 is always the baseline",
            default_help="the most telling ones on the device",
            type=_setting,
            metavar="SETTING",
            many=True,
        ),
        Option("batch", "images a step", type=positive, default=(8,), many=True, selects=True),
        Option(
            "size",
            "height and width of the images",
            type=positive,
            default_help="as published for each network",
            metavar="PIXELS",
        ),
        Option(
            "head",
            "small: global pooling, dropout and one layer, as in the article",
            choices=("published", "small"),
            default="published",
        ),
        Option("optimizer", "sgd with momentum, or adam", choices=("sgd", "adam"), default="sgd"),
        Option(
            "device", "auto: the first GPU, if there is one", choices=("auto", "cpu", "cuda"), default="auto"
        ),
        THREADS,
        Option(
            "epoch-images",
            "images of an epoch, for its time",
            type=positive,
            default=IMAGENET,
            default_help="ImageNet's 1281167",
        ),
        Option("epochs", "epochs that digits is trained for", type=positive, default=12),
    ),
    defaults={"warm-up-seconds": WARM_UP_S},
    needs=(HardwareNeed(memory_gib=8), HardwareNeed(setting="bf16", flags=BF16_FLAGS, flags_name=BF16_NAME)),
    sweep={"network": ["vgg16", "mobilenet", "resnet50", "efficientnet-b0", "digits"], "batch": "8"},
    tiny={"network": "tiny", "setting": ["fp32", "bf16"], "batch": "2", **TINY},
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    for repeated in ("network", "engine", "batch"):
        setattr(arguments, repeated, list(dict.fromkeys(getattr(arguments, repeated))))
    for text in arguments.setting or ():
        unsupported = PYTORCH_ONLY & TrainingSetting.parse(text).optimizations
        if unsupported and "keras" in arguments.engine:
            names = ", ".join(sorted(optimization.value for optimization in unsupported))
            parser.error(f"argument --setting: {names} in {text!r} is for pytorch alone; keras was asked for")
    arguments.threads = arguments.threads or hardware.physical_cores()
    return arguments
