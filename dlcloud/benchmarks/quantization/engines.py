"""Say which engines the quantization benchmark knows and in which settings each runs; imports no engine."""

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""What a processor needs for bf16 to be computed and not imitated; OpenVINO's CPU plugin uses either."""


class Precision(Enum):
    """What a network is computed in; the value is part of a setting's name."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"

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
    """

    name: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    module: str
    precisions: tuple[Precision, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return the first module that is not installed; None where it can run."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)

    def build_factory(self, precision: Precision) -> str:
        """Return the factory that builds the model; all engines share the one that is not quantized."""
        quantized = precision is Precision.INT8
        return f"{self.module}:build_int8" if quantized else "quantization.models:build_fp32"

    def infer_factory(self, precision: Precision) -> str:
        """Return the factory that runs a model."""
        return f"{self.module}:infer_{precision.value}"


DEFAULT = "onnxruntime"

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name=DEFAULT,
            needs=("onnxruntime",),
            packages=("onnxruntime", "onnx", "numpy"),
            module="quantization.onnxruntime_engine",
            precisions=(Precision.FP32, Precision.INT8),
        ),
        Engine(
            name="openvino",
            needs=("openvino", "nncf"),
            packages=("openvino", "nncf", "onnx", "numpy"),
            module="quantization.openvino_engine",
            precisions=(Precision.FP32, Precision.BF16, Precision.INT8),
            # NNCF reports its use to its maker unless it believes that its own tests are running.
            environment={"NNCF_CI": "1"},
        ),
    )
}
