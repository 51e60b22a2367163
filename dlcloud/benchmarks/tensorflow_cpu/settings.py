"""The settings of TensorFlow: knobs that the search may turn, sizes of networks, and the options.

`inspect_machine` reads cores, instructions, memory, allocators and GPUs; `knobs_of` returns the knobs with
the values that each has there and what they mean to a worker. The first value of each knob is stock
TensorFlow's; the order of the knobs is that of the search. Imports no framework.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..harness import hardware, usage
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    RequirementsChoice,
    positive,
    positive_float,
)
from ..harness.case import Limits
from ..harness.hardware import HEAP_VARIABLES, NO_BF16, NOT_GLIBC
from ..harness.usage import GIB

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
        allocators=_machine_allocators(),
        glibc=hardware.is_glibc(),
        free_gib=memory_gib if name else (usage.free_bytes() or hardware.memory_bytes()) / usage.GIB,
        gpu=name,
        compute_capability=capability,
    )


def _machine_allocators() -> dict[str, str]:
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


FEWEST_TO_SPARE = 4
"""Physical cores from which on leaving one to the system is worth trying."""

# Source: compute capabilities of the CUDA C++ Programming Guide: tensor cores for fp16 from 7.0, for TF32 and
# bf16 from 8.0.
FP16_CAPABILITY, TF32_CAPABILITY = 7.0, 8.0


@dataclass(frozen=True, slots=True)
class KnobValue:
    """One position of a knob."""

    name: str  # such as `on`
    _: KW_ONLY
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of the worker
    arguments: Mapping[str, Any] = field(default_factory=dict)  # arguments of training.train
    requires: Mapping[str, str] = field(default_factory=dict)  # values that other knobs must have, by knob
    unsupported: str | None = None  # why this machine cannot run it; None if it can


@dataclass(frozen=True, slots=True)
class Knob:
    """Something that can be set; its first value is stock TensorFlow's."""

    name: str
    values: tuple[KnobValue, ...]


NAMES = ("onednn", "precision", "allocator", "cpus", "intra", "inter", "layout", "xla", "host-threads")
"""Every knob of either device."""

Configuration = Mapping[str, KnobValue]
"""A value of each knob."""


def knobs_of(device: str, machine: TrainingMachine) -> tuple[Knob, ...]:
    return _gpu_knobs(machine) if device == "gpu" else _cpu_knobs(machine)


def stock_configuration(knobs: Sequence[Knob]) -> Configuration:
    """Return what TensorFlow does by default, but with oneDNN and TF32 off.

    Both came after the stock TensorFlow that the articles compare with, and both are knobs.
    """
    return {knob.name: knob.values[0] for knob in knobs}


def article_configuration(knobs: Sequence[Knob], machine: TrainingMachine) -> Configuration:
    """Return an article's settings: Intel's and Amazon's best-known methods of 2018.

    The OpenMP variables are the value of their own knob.

    Source: "Amazon Web Services Works with Intel to Enable Optimized Deep Learning Frameworks on Amazon EC2
    CPU Instances", Intel AI blog, 2018: as many OpenMP and intra-op threads as physical cores, one inter-op
    thread, NCHW, and Intel's MKL-DNN, which TensorFlow calls oneDNN today.
    """
    cores = len(machine.cores)
    by_name = {(knob.name, value.name): value for knob in knobs for value in knob.values}
    return {
        **stock_configuration(knobs),
        "onednn": by_name["onednn", "on"],
        "layout": by_name["layout", "NCHW"],
        "intra": KnobValue(str(cores), arguments={"intra": cores}),
        "inter": KnobValue("1", arguments={"inter": 1}),
        "openmp": KnobValue("article", environment=_openmp_variables(cores)),
    }


def article_facts(machine: TrainingMachine, openmp_runtime: object) -> dict[str, object]:
    """Return what the article's settings were on this machine, and which a worker without OpenMP ignored."""
    variables = _openmp_variables(len(machine.cores))
    facts: dict[str, object] = {
        "physical_cores_found": len(machine.cores),
        "hyper_threads_per_core": machine.threads_per_core,
        "openmp_settings": " ".join(f"{name}={text}" for name, text in variables.items()),
    }
    if openmp_runtime is None:
        reason = "this TensorFlow runs on Eigen's threads and has loaded no OpenMP"
        facts["ignored"] = f"{', '.join(variables)}: {reason}"
    return facts


def _openmp_variables(cores: int) -> dict[str, str]:
    """Return the article's variables without `verbose`, which only prints."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "1",
        "KMP_SETTINGS": "1",
    }


def environment_of(configuration: Configuration) -> dict[str, str]:
    changes = {name: text for value in configuration.values() for name, text in value.environment.items()}
    if "LD_PRELOAD" in changes and os.environ.get("LD_PRELOAD"):
        changes["LD_PRELOAD"] += f":{os.environ['LD_PRELOAD']}"
    return changes


def arguments_of(configuration: Configuration) -> dict[str, Any]:
    return {name: given for value in configuration.values() for name, given in value.arguments.items()}


def dtype_of(configuration: Configuration) -> str:
    """Return the data type that products are computed in, such as `bf16`."""
    return configuration["precision"].name.partition("-")[0]


def describe(configuration: Configuration, knobs: Sequence[Knob]) -> str:
    """Return how a configuration differs from stock: `onednn=on precision=bf16-policy`."""
    usual = stock_configuration(knobs)
    changed = [f"{name}={value.name}" for name, value in configuration.items() if value != usual.get(name)]
    return " ".join(changed) or "as stock"


def _cpu_knobs(machine: TrainingMachine) -> tuple[Knob, ...]:
    cores = len(machine.cores)
    one_per_core = KnobValue(
        "one-per-core",
        arguments={"cpus": list(machine.cores)},
        unsupported=None if machine.threads_per_core > 1 else "no core has hyper-threads here",
    )
    # TensorFlow's own choice, one thread a core, and one core left to the system.
    intra = (
        KnobValue("default"),
        KnobValue(
            "physical",
            arguments={"intra": cores},
            unsupported=f"TensorFlow takes {cores} by itself" if cores == machine.logical else None,
        ),
        KnobValue(
            "one-spared",
            arguments={"intra": max(1, cores - 1)},
            unsupported=None if cores >= FEWEST_TO_SPARE else f"{cores} cores leave none to spare",
        ),
    )
    same = "TensorFlow takes 2 by itself" if machine.logical == 2 else None  # noqa: PLR2004 - two is two
    inter = (
        KnobValue("default"),
        KnobValue("1", arguments={"inter": 1}),
        KnobValue("2", arguments={"inter": 2}, unsupported=same),
    )
    return (
        Knob(
            "onednn",
            (
                KnobValue("off", environment={"TF_ENABLE_ONEDNN_OPTS": "0"}),
                KnobValue("on", environment={"TF_ENABLE_ONEDNN_OPTS": "1"}),
            ),
        ),
        Knob("precision", _cpu_precisions(machine)),
        Knob("allocator", _knob_allocators(machine)),
        Knob("cpus", (KnobValue("all"), one_per_core)),
        Knob("intra", intra),
        Knob("inter", inter),
        Knob("layout", (_layout("NHWC"), _layout("NCHW", {"onednn": "on"}))),
        _xla(),
    )


def _cpu_precisions(machine: TrainingMachine) -> tuple[KnobValue, ...]:
    has_bf16 = hardware.BF16_FLAGS & set(machine.flags)
    unsupported = None if has_bf16 else NO_BF16
    # Without oneDNN bf16 is imitated, and ten times as slow as fp32.
    requires = {"onednn": "on"}
    reduced = [_precision(name, unsupported, requires) for name in ("bf16-rewrite", "bf16-policy")]
    return (_precision("fp32"), *reduced)


def _precision(
    name: str, unsupported: str | None = None, requires: Mapping[str, str] | None = None
) -> KnobValue:
    return KnobValue(name, arguments={"precision": name}, unsupported=unsupported, requires=requires or {})


def _knob_allocators(machine: TrainingMachine) -> tuple[KnobValue, ...]:
    installed = machine.allocators
    preloaded = [
        KnobValue(
            name,
            environment={"LD_PRELOAD": installed.get(name, "")},
            unsupported=None if name in installed else f"{name} is not installed",
        )
        for name in ALLOCATORS
    ]
    not_glibc = None if machine.glibc else NOT_GLIBC
    heap = KnobValue("glibc-heap", environment=HEAP_VARIABLES, unsupported=not_glibc)
    return (KnobValue("glibc"), heap, *preloaded)


def _layout(name: str, requires: Mapping[str, str] | None = None) -> KnobValue:
    return KnobValue(name, arguments={"layout": name}, requires=requires or {})


def _xla() -> Knob:
    return Knob("xla", (KnobValue("off"), KnobValue("on", arguments={"xla": True})))


def _gpu_knobs(machine: TrainingMachine) -> tuple[Knob, ...]:
    capability = machine.compute_capability
    gpu = f"{machine.gpu} (compute capability {capability})"
    fp16 = None if capability >= FP16_CAPABILITY else f"{gpu} has no tensor cores"
    tf32 = None if capability >= TF32_CAPABILITY else f"{gpu} has no tensor cores for TF32 and bf16"
    unsupported = {"tf32": tf32, "fp16-policy": fp16, "fp16-rewrite": fp16, "bf16-policy": tf32}
    precisions = (_precision("fp32"), *(_precision(name, reason) for name, reason in unsupported.items()))
    asynchronous = KnobValue("async", environment={"TF_GPU_ALLOCATOR": "cuda_malloc_async"})
    private = KnobValue("private", environment={"TF_GPU_THREAD_MODE": "gpu_private"})
    return (
        Knob("precision", precisions),
        Knob("layout", (_layout("NHWC"), _layout("NCHW"))),
        _xla(),
        Knob("allocator", (KnobValue("bfc"), asynchronous)),
        Knob("host-threads", (KnobValue("shared"), private)),
    )


CLASSES = 1000

BYTES = 4

FRAMEWORK_GIB = 0.6
"""Memory of a process with TensorFlow before it builds a network."""

SLOTS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "rmsprop": 2}
"""Values that an optimizer keeps for each weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a network."""

    image: int  # height and width of its images, as in the networks' papers and tf_cnn_benchmarks
    weights: int
    activations: int  # number of output values of its layers for one image

    def training_gib(self, batch: int, optimizer: str) -> float:
        """Estimate the resident memory of one training process, in GiB.

        Weights, their gradients, the optimizer's values and a working copy; activations of every layer,
        kept for the way back. Measured: within a fifth of the resident memory of six networks.
        """
        values = self.weights * (3 + SLOTS[optimizer]) + self.activations * batch
        return FRAMEWORK_GIB + values * BYTES / GIB


SIZES: Mapping[str, Size] = {
    "alexnet": Size(image=224, weights=61_100_840, activations=607_016),
    "googlenet": Size(image=224, weights=6_998_552, activations=5_882_264),
    "inception3": Size(image=299, weights=23_851_784, activations=32_286_184),
    "resnet50": Size(image=224, weights=25_636_712, activations=36_969_684),
    "resnet152": Size(image=224, weights=60_419_944, activations=78_916_820),
    "vgg16": Size(image=224, weights=138_357_544, activations=15_112_168),
    "tiny": Size(image=32, weights=201_320, activations=50_216),
}
"""The networks; those that do not fit into memory are left out in advance."""

STOCK, ARTICLE, TODAY = SETTINGS = ("stock", "article", "today")

SEARCH = Limits(width=0.1, max_s=20.0, rounds=3, slice_s=1.0, warm_up_s=20.0)
"""A search only asks of each value whether it is clearly better."""

_search = partial(Option, group=f"the search for {TODAY}'s best setting")

ENTRY = Benchmark(
    name="tensorflow",
    module="benchmarks.tensorflow_cpu",
    requirements="tensorflow.txt",
    summary="Compare settings of training with TensorFlow: stock, an article's of 2018, and the "
    "best that a search finds.",
    options=(
        Option(
            "network",
            "networks with random weights",
            choices=tuple(SIZES),
            default=("resnet50",),
            many=True,
            selects=True,
        ),
        Option("batch", "images a step", type=positive, default=(32,), many=True, selects=True),
        Option(
            "settings",
            "settings to compare; stock is the baseline in any case",
            choices=SETTINGS,
            default=SETTINGS,
            default_help="all",
            many=True,
        ),
        Option("optimizer", "how weights are updated", choices=tuple(SLOTS), default="sgd"),
        Option("device", "where to train", choices=("cpu", "gpu"), default="cpu"),
        _search(
            "knobs",
            "knobs that the search may turn",
            choices=NAMES,
            default=NAMES,
            default_help="all",
            many=True,
        ),
        _search(
            "search-batch",
            "search at this batch only and use the best setting at every one",
            type=positive,
            default_help="each is searched",
        ),
        _search(
            "search-rounds",
            "rounds of each case of the search at least",
            type=positive,
            default=SEARCH.rounds,
        ),
        _search(
            "search-seconds",
            "seconds after which a case of the search begins no further round",
            type=positive_float,
            default=SEARCH.max_s,
        ),
        _search(
            "search-total-seconds",
            "seconds after which the search turns no further knob",
            type=positive_float,
            default_help="every knob is turned",
        ),
    ),
    needs=(
        HardwareNeed(memory_gib=8),
        # Source: PyPI, tensorflow-cpu 2.21.0: no wheel for aarch64. Its knobs are oneDNN's on x86.
        HardwareNeed(architecture="x86_64"),
        HardwareNeed(given=("device", "gpu"), gpu=True),
        HardwareNeed(
            flags=BF16_FLAGS,
            flags_name=BF16_NAME,
            advice="the search leaves bf16 out there, its largest gain",
        ),
    ),
    case_s=930.0,
    tiny_s=110.0,
    sweep={"network": ["resnet50", "vgg16"], "batch": "32"},
    tiny={"network": "tiny", "batch": "8", "knobs": ["onednn", "precision"], **TINY, "search-seconds": "1"},
    choices=(RequirementsChoice(parameter="device", value="gpu", requirements="tensorflow_gpu.txt"),),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    arguments.settings = [name for name in SETTINGS if name == STOCK or name in arguments.settings]
    if arguments.search_batch is not None and TODAY not in arguments.settings:
        parser.error(f"--search-batch is of the search, which needs --settings {TODAY}")
    return arguments
