"""Prove which precision the kernels compute in, from what the libraries themselves say they ran.

On CPUs oneDNN lists each primitive with its kernel and types; on GPUs PyTorch's profiler names each kernel.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .settings import Precision

HEAVY = ("convolution", "inner_product", "matmul", "deconvolution")
"""Primitives that do nearly all the arithmetic."""

OPERANDS = 8
"""Which field of a line in oneDNN's log describes the operands, counted from 0."""

OPERAND_TYPE = re.compile(r"\b(?:src|wei|dst)\w*:(\w+):")

HAS_BF16 = re.compile(r"avx512_core_bf16|avx512_core_fp16|avx10|amx|avx2_vnni_2|sve|asimd|acl")
"""Instruction sets with bf16, in kernels' names. Kernels for others take bf16, too, and compute in fp32."""

ONEDNN_TYPES = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16"}

# Names of CUDA libraries' kernels. hmma, [sh]884, [sh]1688 and [sh]16816 are the shapes of tensor core
# instructions from Volta to Ada, (w)gmma those of Hopper; nvjet is cuBLAS's name since then.
# Source: kernels seen in public profiles of cuDNN 7 to 9, cuBLAS 10 to 13 and CUTLASS 2 to 3.
TENSOR_CORE = re.compile(
    r"[sh](884|1688|16816)|hmma|w?gmma|tensorop|nvjet|xmma(?!.*_f32f32_f32f32)", re.IGNORECASE
)
SIMT = re.compile(r"simt|nvjet_ss|sgemm|scudnn|_ffma_|f32f32_f32f32", re.IGNORECASE)
ARITHMETIC = re.compile(r"gemm|conv|cudnn|cutlass|xmma|nvjet|fprop|dgrad|wgrad|winograd", re.IGNORECASE)
HELPER = re.compile(
    r"^triton_(?!tem)|nchwToNhwc|nhwcToNchw|convertTensor|splitKreduce|transform|elementwise|copy",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of a step that do the arithmetic.

    Attributes:
        seen: How often each kernel ran, as the library names it.
        reduced: How many of the runs computed in the precision asked for.
        total: How many ran in all.
    """

    seen: Counter[str]
    reduced: int

    @property
    def total(self) -> int:
        """Return how many kernels ran."""
        return self.seen.total()


def onednn_kernels(lines: Iterable[str], precision: Precision) -> Kernels:
    """Count the kernels in oneDNN's verbose log.

    A line is `onednn_verbose,v1,primitive,exec,cpu,convolution,KERNEL,forward_training,src:bf16:...,...`;
    the kernel's name holds the instruction set, such as `brg_conv_fwd:avx512_core_bf16`.

    Source: oneDNN documentation, "Verbose Mode".
    """
    wanted = ONEDNN_TYPES[precision]
    seen: Counter[str] = Counter()
    reduced = 0
    for line in lines:
        fields = line.strip().split(",")
        if len(fields) <= OPERANDS or fields[3] != "exec" or fields[5] not in HEAVY:
            continue
        primitive, kernel = fields[5:7]
        kinds = set(OPERAND_TYPE.findall(fields[OPERANDS]))
        seen[f"{primitive} {kernel} {'/'.join(sorted(kinds))}"] += 1
        # A gradient may be summed in fp32.
        native = all(HAS_BF16.search(part) for part in kernel.split("+"))
        reduced += kinds == {"f32"} if wanted == "f32" else wanted in kinds and native
    return Kernels(seen=seen, reduced=reduced)


def cuda_kernels(names: Iterable[str], precision: Precision) -> Kernels:
    """Count the kernels of convolutions and products among the names of CUDA kernels.

    For FP32 those count that use no tensor core, for the others those that do.
    """
    arithmetic = [name for name in names if ARITHMETIC.search(name) and not HELPER.search(name)]
    on_tensor_cores = sum(uses_tensor_cores(name) for name in arithmetic)
    reduced = len(arithmetic) - on_tensor_cores if precision is Precision.FP32 else on_tensor_cores
    return Kernels(seen=Counter(name[:120] for name in arithmetic), reduced=reduced)


def uses_tensor_cores(name: str) -> bool:
    """Tell whether a CUDA kernel of this name runs on tensor cores."""
    return TENSOR_CORE.search(name) is not None and SIMT.search(name) is None
