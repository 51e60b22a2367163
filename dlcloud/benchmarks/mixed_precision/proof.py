"""Prove each setting by its kernels before it is timed, and group settings that fit into memory together."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..harness.case import VariantError, WorkerVariant
from ..harness.kernels import read_primitives, uses_tensor_cores
from ..harness.records import Recorder
from .precisions import Optimization, TrainingPrecision, TrainingSetting

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
    """Run each setting briefly in a process of its own and keep those that compute in their precision.

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
