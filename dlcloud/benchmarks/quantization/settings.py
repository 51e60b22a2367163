"""The settings of inference: engines, precisions, instruction sets, formats, and the options to choose them.

The launcher's catalog, the program and its workers read it; it imports no engine. `Engine` states everything
that differs between engines: packages, precisions, instruction sets, environments, formats. A user's model is
a file that is described once; the path of its description stands in for a network's name.
"""

import argparse
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..harness import hardware
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    CACHE,
    THREADS,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    RequirementsChoice,
    positive,
)
from ..harness.hardware import NO_BF16, X86_BF16_FLAGS


class Format(Enum):
    """The format of a model file; the value is its usual name."""

    ONNX = "ONNX"
    PT2 = "torch.export"
    KERAS = "Keras"
    SAVED_MODEL = "TensorFlow SavedModel"


DESCRIPTION_SUFFIX = ".described.json"
"""End of the name of a file that describes a user's model; its path stands in for a network's name."""

SUFFIXES = {".onnx": Format.ONNX, ".pt2": Format.PT2, ".keras": Format.KERAS, "": Format.SAVED_MODEL}


def detect_format(path: Path) -> Format:
    """Return the format of a model file.

    Raises:
        ValueError: The suffix is unknown.
    """
    try:
        return SUFFIXES[path.suffix]
    except KeyError:
        raise ValueError(
            f"{path}: a model is an .onnx, .pt2 or .keras file, or the folder of a TensorFlow SavedModel"
        ) from None


def explain_missing(path: Path) -> str | None:
    return None if path.exists() else f"{path} does not exist"


def explain_missing_model(path: Path) -> str | None:
    if (reason := explain_missing(path)) is not None:
        return reason
    if detect_format(path) is Format.SAVED_MODEL and not (path / "saved_model.pb").is_file():
        return f"{path} is no TensorFlow SavedModel: it holds no saved_model.pb"
    return None


def is_user_model(network: str) -> bool:
    """True if a network is a description's path, False if it is the name of one of the benchmark's own."""
    return network.endswith(DESCRIPTION_SUFFIX)


def read_description(network: str) -> dict[str, Any] | None:
    """Return the description of the user's model; None for a network of the benchmark's own."""
    if not is_user_model(network):
        return None
    description: dict[str, Any] = json.loads(Path(network).read_text(encoding="utf-8"))
    return description


def read_title(network: str) -> str:
    """Return the network's name, or the name of the user's file."""
    description = read_description(network)
    return network if description is None else Path(description["source"]).name


COMPILERS = ("g++", "clang++", "c++")


class Isa(Enum):
    """The newest instructions that an engine may use; the value is what is typed after `--isa`."""

    NATIVE = "native"
    AVX512_CORE = "avx512_core"
    AVX2 = "avx2"

    def visible_flags(self, flags: Collection[str]) -> list[str]:
        """Return those of a processor's flags that are left under this cap.

        `avx512_core` is what Skylake had (c5): AVX-512 without VNNI, BF16 and AMX.
        """
        if self is Isa.NATIVE:
            return list(flags)
        newer = ("avx512",) if self is Isa.AVX2 else ("avx512_vnni", "avx512_bf16", "avx512_fp16")
        return [flag for flag in flags if not flag.startswith(("amx", "avx_vnni", *newer))]

    def explain_unsupported(self, flags: Collection[str]) -> str | None:
        required = {Isa.AVX512_CORE: "avx512bw", Isa.AVX2: "avx2"}.get(self)
        return f"this processor has no {required}" if required and required not in flags else None


class InferencePrecision(Enum):
    """What a network is computed in; the value is part of a setting's name.

    FP32 is each engine's best: compiled, where it compiles. FP32_EAGER is the same without.
    """

    FP32 = "fp32"
    FP32_EAGER = "fp32-eager"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def is_fp32(self) -> bool:
        """True if others are compared with it."""
        return self in {InferencePrecision.FP32, InferencePrecision.FP32_EAGER}

    def explain_unsupported(self, flags: Collection[str]) -> str | None:
        lacks_bf16 = self is InferencePrecision.BF16 and not X86_BF16_FLAGS & set(flags)
        return NO_BF16 if lacks_bf16 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An inference engine."""

    name: str  # as typed after `--engine`
    modules: tuple[str, ...]  # the modules without which it cannot run
    packages: tuple[str, ...]  # distributions whose versions belong to the figures
    module: str  # module of `benchmarks` that its workers load; has `build_int8` and `infer`
    precisions: tuple[InferencePrecision, ...]  # in which it runs, the baseline first
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for its workers
    # The factory that builds the fp32 model; most engines read the one of models.py.
    fp32_builder: str = "quantization.models:build_fp32"
    # Whether its module has `prove`, which reports the instructions and kernels of a model.
    has_proof: bool = False
    # By instruction set, the variables that hold the engine to it; none if it knows no cap.
    isa_variables: Mapping[Isa, Mapping[str, str]] = field(default_factory=dict)
    # Precisions that need a C++ compiler on the machine.
    compiled: frozenset[InferencePrecision] = frozenset()
    # The requirements file of the separate environment that its workers run in, if it cannot share one; its
    # models are made there, by `build`, from the output of `fp32_builder`.
    own_requirements: str = ""
    own_python: str = ""  # the version of Python in that environment
    unsupported_networks: frozenset[str] = frozenset()  # networks that it has no form of
    # Programs that must be on the machine, each with how to get it.
    programs: Mapping[str, str] = field(default_factory=dict)
    # The formats that it reads the user's own model from, some of them converted.
    formats: frozenset[Format] = frozenset()
    # In which it runs on an NVIDIA GPU, the baseline first; none if it does not.
    gpu_precisions: tuple[InferencePrecision, ...] = ()

    def explain_missing_program(self) -> str | None:
        missing = [(name, hint) for name, hint in self.programs.items() if not shutil.which(name)]
        return f"there is no {missing[0][0]}: {missing[0][1]}" if missing else None

    def explain_unsupported(
        self, precision: InferencePrecision, isa: Isa, flags: Collection[str]
    ) -> str | None:
        """Return why a processor with these flags, held to `isa`, cannot run it; None if it can."""
        if isa is not Isa.NATIVE and isa not in self.isa_variables:
            return f"{self.name} chooses its instructions itself and cannot be held to {isa.value}"
        if precision in self.compiled and not any(map(shutil.which, COMPILERS)):
            return f"there is no C++ compiler, which {self.name} needs: apt-get install g++"
        return isa.explain_unsupported(flags) or precision.explain_unsupported(isa.visible_flags(flags))

    def environment_for(self, isa: Isa) -> dict[str, str]:
        return {**self.environment, **self.isa_variables.get(isa, {})}

    def build_factory(self, precision: InferencePrecision) -> str:
        shares_fp32 = precision is not InferencePrecision.INT8 or self.own_requirements
        return self.fp32_builder if shares_fp32 else f"{self.module}:build_int8"


DEFAULT = "openvino"

# Source: oneDNN developer guide, "CPU Dispatcher Control".
ONEDNN_VARIABLES = {
    Isa.AVX512_CORE: {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    Isa.AVX2: {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name=DEFAULT,
            modules=("openvino", "nncf"),
            packages=("openvino", "nncf", "onnx", "numpy"),
            module="quantization.openvino_engine",
            precisions=(InferencePrecision.FP32, InferencePrecision.BF16, InferencePrecision.INT8),
            # NNCF reports its use to its maker unless it believes that its own tests are running.
            environment={"NNCF_CI": "1"},
            fp32_builder="quantization.openvino_engine:build_fp32",
            has_proof=True,
            formats=frozenset(Format),
            isa_variables=ONEDNN_VARIABLES,
        ),
        Engine(
            name="onnxruntime",
            modules=("onnxruntime",),
            packages=("onnxruntime", "onnx", "numpy"),
            module="quantization.onnxruntime_engine",
            precisions=(InferencePrecision.FP32, InferencePrecision.INT8),
            has_proof=True,
            formats=frozenset({Format.ONNX}),
        ),
        Engine(
            name="bigdl",
            modules=("onnx",),
            packages=("onnx", "numpy"),
            module="quantization.bigdl_engine",
            precisions=(InferencePrecision.FP32, InferencePrecision.INT8),
            fp32_builder="quantization.bigdl_engine:export",
            own_requirements="quantization_bigdl.txt",
            own_python="3.11",  # the newest that its NumPy is built for
            unsupported_networks=frozenset({"ssd300"}),
            programs={"java": "sudo apt-get install -qy openjdk-17-jre-headless"},
        ),
        Engine(
            name="pytorch",
            modules=("torch", "torchao", "onnx"),
            packages=("torch", "torchao", "onnx", "numpy"),
            module="quantization.pytorch_engine",
            precisions=(
                InferencePrecision.FP32,
                InferencePrecision.FP32_EAGER,
                InferencePrecision.BF16,
                InferencePrecision.INT8,
            ),
            gpu_precisions=(
                InferencePrecision.FP32,
                InferencePrecision.FP32_EAGER,
                InferencePrecision.BF16,
                InferencePrecision.FP16,
                InferencePrecision.INT8,
            ),
            fp32_builder="quantization.pytorch_engine:build_fp32",
            formats=frozenset({Format.ONNX, Format.PT2, Format.KERAS}),
            isa_variables={
                isa: {**variables, "ATEN_CPU_CAPABILITY": level, "MKL_ENABLE_INSTRUCTIONS": level.upper()}
                for (isa, variables), level in zip(ONEDNN_VARIABLES.items(), ("avx512", "avx2"), strict=True)
            },
            compiled=frozenset({InferencePrecision.FP32, InferencePrecision.BF16, InferencePrecision.INT8}),
        ),
    )
}


def _model_path(text: str) -> Path:
    """Read the path of a model, which is looked for only on the machine that runs it."""
    try:
        detect_format(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def _shape(text: str) -> list[int]:
    """Read a shape, such as 224,224,3."""
    return [positive(size) for size in text.split(",")]


ENTRY = Benchmark(
    name="quantization",
    module="benchmarks.quantization",
    requirements="quantization.txt",
    summary="Compare fp32 with int8 inference of image networks on OpenVINO, ONNX Runtime and "
    "PyTorch: speed, latency, size, memory, and accuracy or agreement.",
    options=(
        Option(
            "network",
            "random weights, or digits: a small VGG trained on real images, judged by its accuracy",
            choices=("vgg16", "vgg19", "resnet50", "ssd300", "tiny", "digits"),
            default_help="vgg16, or the --model alone",
            many=True,
            selects=True,
        ),
        Option(
            "model",
            "your own model, of one input: .onnx, .pt2, .keras, or the folder of a SavedModel",
            type=_model_path,
            metavar="FILE",
            file=True,
        ),
        Option(
            "input-shape",
            "shape of the model's input without the batch, if the model leaves it open",
            type=_shape,
            metavar="N,N,..",
        ),
        Option(
            "data",
            "images to calibrate (first half) and judge (second half): .npz with inputs and "
            "perhaps labels, .npy, or a folder of .npy",
            type=Path,
            default_help="synthetic images",
            metavar="FILE",
            file=True,
        ),
        Option(
            "engine",
            "engines to run in turn; bigdl runs on Spark and needs Java and Python 3.11",
            choices=tuple(ENGINES),
            default=(DEFAULT,),
            many=True,
        ),
        Option("device", "cuda is used by pytorch only", choices=("cpu", "cuda"), default="cpu"),
        Option(
            "precision",
            "precisions to measure in addition to each engine's fp32",
            choices=tuple(precision.value for precision in InferencePrecision),
            default_help="all that it can run in on the machine",
            many=True,
            selects=True,
        ),
        Option(
            "batch",
            "images a step; latency is measured at 1",
            type=positive,
            default=(1, 8),
            many=True,
            selects=True,
        ),
        THREADS,
        Option(
            "isa",
            "newest instructions an engine may use: avx512_core is Skylake's (c5), without VNNI, native what "
            "the processor has",
            choices=tuple(isa.value for isa in Isa),
            default=(Isa.NATIVE.value,),
            many=True,
            selects=True,
        ),
        Option(
            "calibration-images",
            "synthetic images that the int8 scales are computed from",
            type=positive,
            default=16,
        ),
        CACHE,
    ),
    needs=(
        HardwareNeed(memory_gib=4),
        HardwareNeed(given=("device", "cuda"), gpu=True),
        # Source: PyPI, bigdl-core 2.4.0.dev0: wheels for x86_64 only.
        HardwareNeed(given=("engine", "bigdl"), architecture="x86_64"),
        HardwareNeed(setting="bf16", flags=BF16_FLAGS, flags_name=BF16_NAME),
        HardwareNeed(
            setting="int8",
            flags=("avx512_vnni", "avx_vnni", "amx_int8"),
            flags_name="VNNI",
            advice="int8 gains about half as much there",
        ),
    ),
    sweep={"network": ["vgg16", "resnet50"], "engine": "openvino", "batch": ["1", "8"]},
    tiny={"network": "tiny", "engine": "onnxruntime", "batch": "1", **TINY},
    choices=(
        RequirementsChoice(parameter="engine", value="pytorch", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="model", value="*.pt2", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="model", value="*.keras", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="network", value="digits", requirements="quantization.txt"),
        *(
            # BigDL itself lies in its own environment; this one builds its models.
            RequirementsChoice(
                parameter="engine", value=engine, alone=True, requirements="quantization_onnxruntime.txt"
            )
            for engine in ("onnxruntime", "bigdl")
        ),
    ),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    if arguments.model is None and (arguments.data or arguments.input_shape):
        parser.error("--data and --input-shape belong to a --model")
    arguments.network = arguments.network or ([] if arguments.model else ["vgg16"])
    arguments.engine = list(dict.fromkeys(arguments.engine))
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments
