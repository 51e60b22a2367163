"""Say which engines the quantization benchmark knows and in which settings each runs; imports no engine."""

import importlib.util
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from .formats import Format

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""What a processor needs for bf16 to be computed and not imitated; OpenVINO's CPU plugin uses either."""

COMPILERS = ("g++", "clang++", "c++")


class Isa(Enum):
    """The newest instructions that an engine may use; the value is what is typed after `--isa`."""

    NATIVE = "native"
    AVX512_CORE = "avx512_core"
    AVX2 = "avx2"

    def visible(self, flags: Collection[str]) -> list[str]:
        """Return those of a processor's flags that are left under this cap.

        `avx512_core` is what Skylake had (c5): AVX-512 without VNNI, BF16 and AMX.
        """
        if self is Isa.NATIVE:
            return list(flags)
        newer = ("avx512",) if self is Isa.AVX2 else ("avx512_vnni", "avx512_bf16", "avx512_fp16")
        return [flag for flag in flags if not flag.startswith(("amx", "avx_vnni", *newer))]

    def lacking(self, flags: Collection[str]) -> str | None:
        """Say why a processor with these flags cannot be held to it; None where it can."""
        needed = {Isa.AVX512_CORE: "avx512bw", Isa.AVX2: "avx2"}.get(self)
        return f"this processor has no {needed}" if needed and needed not in flags else None


class Precision(Enum):
    """What a network is computed in; the value is part of a setting's name.

    FP32 is each engine's best: compiled, where it compiles. FP32_EAGER is the same without.
    """

    FP32 = "fp32"
    FP32_EAGER = "fp32-eager"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def whole(self) -> bool:
        """Tell whether it is fp32, so that others are compared with it."""
        return self in {Precision.FP32, Precision.FP32_EAGER}

    def lacking(self, flags: Collection[str]) -> str | None:
        """Say why a processor with these flags cannot compute in it; None where it can."""
        if self is Precision.BF16 and not BF16_FLAGS & set(flags):
            return "this processor has neither AVX512_BF16 nor AMX"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An inference engine.

    Attributes:
        name: As typed after `--engine`.
        needs: The modules without which it cannot run.
        packages: Distributions whose versions belong to the figures.
        module: Module of `benchmarks` that its workers load; has `build_int8` and `infer_PRECISION`.
        precisions: In which it runs, the baseline first.
        environment: Variables for its workers.
        fp32_builder: The factory that makes sure of the fp32 model; most engines read the one of models.py.
        proves: Whether its module has `prove`, which says by what instructions and kernels a model is run.
        caps: By instruction set, the variables that hold the engine to it; none where it knows no cap.
        compiles: What needs a C++ compiler on the machine.
        own: The file of the environment of its own that its workers run in, where it cannot share one; its
            models are made there, by `build_PRECISION`, of what `fp32_builder` wrote down.
        own_python: The version of Python in that environment.
        unable: Networks that it has no form of.
        programs: Programs that must be on the machine, each with how to get it.
        reads: The formats that it reads the user's own model from, some of them converted.
        gpu_precisions: In which it runs on an NVIDIA GPU, the baseline first; none where it does not.
    """

    name: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    module: str
    precisions: tuple[Precision, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    fp32_builder: str = "quantization.models:build_fp32"
    proves: bool = False
    caps: Mapping[Isa, Mapping[str, str]] = field(default_factory=dict)
    compiles: frozenset[Precision] = frozenset()
    own: str = ""
    own_python: str = ""
    unable: frozenset[str] = frozenset()
    programs: Mapping[str, str] = field(default_factory=dict)
    reads: frozenset[Format] = frozenset()
    gpu_precisions: tuple[Precision, ...] = ()

    def missing(self) -> str | None:
        """Return the first module that is not installed; None where it can run."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)

    def precisions_on(self, device: str) -> tuple[Precision, ...]:
        """Return in which precisions it runs on `cpu` or `cuda`."""
        return self.gpu_precisions if device == "cuda" else self.precisions

    def lacking(self, precision: Precision, isa: Isa, flags: Collection[str]) -> str | None:
        """Say why the engine cannot run in a precision here; None where it can.

        Args:
            precision: In which it shall run.
            isa: What it shall be held to.
            flags: The processor's.
        """
        if isa is not Isa.NATIVE and isa not in self.caps:
            return f"{self.name} chooses its instructions itself and cannot be held to {isa.value}"
        if precision in self.compiles and not any(map(shutil.which, COMPILERS)):
            return f"there is no C++ compiler, which {self.name} needs: apt-get install g++"
        return isa.lacking(flags) or precision.lacking(isa.visible(flags))

    def absent(self) -> str | None:
        """Say which program is not on the machine and how to get it; None where all are there."""
        return next(
            (f"there is no {name}: {how}" for name, how in self.programs.items() if not shutil.which(name)),
            None,
        )

    def environment_for(self, isa: Isa) -> dict[str, str]:
        """Return the variables for its workers, held to an instruction set."""
        return {**self.environment, **self.caps.get(isa, {})}

    def build_factory(self, precision: Precision) -> str:
        """Return the factory that builds the model."""
        shared = precision is not Precision.INT8 or self.own
        return self.fp32_builder if shared else f"{self.module}:build_int8"

    def infer_factory(self, precision: Precision) -> str:
        """Return the factory that runs a model."""
        return f"{self.module}:infer_{precision.value.replace('-', '_')}"


DEFAULT = "openvino"

# Source: oneDNN developer guide, "CPU Dispatcher Control".
ONEDNN_CAPS = {
    Isa.AVX512_CORE: {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    Isa.AVX2: {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name=DEFAULT,
            needs=("openvino", "nncf"),
            packages=("openvino", "nncf", "onnx", "numpy"),
            module="quantization.openvino_engine",
            precisions=(Precision.FP32, Precision.BF16, Precision.INT8),
            # NNCF reports its use to its maker unless it believes that its own tests are running.
            environment={"NNCF_CI": "1"},
            fp32_builder="quantization.openvino_engine:build_fp32",
            proves=True,
            reads=frozenset(Format),
            caps=ONEDNN_CAPS,
        ),
        Engine(
            name="onnxruntime",
            needs=("onnxruntime",),
            packages=("onnxruntime", "onnx", "numpy"),
            module="quantization.onnxruntime_engine",
            precisions=(Precision.FP32, Precision.INT8),
            proves=True,
            reads=frozenset({Format.ONNX}),
        ),
        Engine(
            name="bigdl",
            needs=("onnx",),
            packages=("onnx", "numpy"),
            module="quantization.bigdl_engine",
            precisions=(Precision.FP32, Precision.INT8),
            fp32_builder="quantization.bigdl_export:build",
            own="quantization_bigdl.txt",
            own_python="3.11",  # the last for which its NumPy was built
            unable=frozenset({"ssd300"}),
            programs={"java": "sudo apt-get install -qy openjdk-17-jre-headless"},
        ),
        Engine(
            name="pytorch",
            needs=("torch", "torchao", "onnx"),
            packages=("torch", "torchao", "onnx", "numpy"),
            module="quantization.pytorch_engine",
            precisions=(Precision.FP32, Precision.FP32_EAGER, Precision.BF16, Precision.INT8),
            gpu_precisions=(
                Precision.FP32,
                Precision.FP32_EAGER,
                Precision.BF16,
                Precision.FP16,
                Precision.INT8,
            ),
            fp32_builder="quantization.pytorch_engine:build_fp32",
            reads=frozenset({Format.ONNX, Format.PT2, Format.KERAS}),
            caps={
                isa: {**cap, "ATEN_CPU_CAPABILITY": kind, "MKL_ENABLE_INSTRUCTIONS": kind.upper()}
                for (isa, cap), kind in zip(ONEDNN_CAPS.items(), ("avx512", "avx2"), strict=True)
            },
            compiles=frozenset({Precision.FP32, Precision.BF16, Precision.INT8}),
        ),
    )
}
