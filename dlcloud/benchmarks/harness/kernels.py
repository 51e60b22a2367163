"""Read from the logs of oneDNN and of CUDA's profiler which kernels a framework ran, and in which types."""

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ARITHMETIC_PRIMITIVES = frozenset({"convolution", "deconvolution", "inner_product", "matmul"})
"""The primitives that do nearly all the arithmetic, as oneDNN names them."""

# Source: oneDNN developer guide, "Verbose Mode": comma-separated fields, the primitive's kind, its
# implementation, the kind of propagation, and operands such as `src:u8::blocked:acdb::f0 wei:s8:...`.
PRIMITIVE = re.compile(
    r"onednn_verbose,.*?(?P<event>create:\w+|exec),cpu,(?P<kind>\w+),(?P<kernel>[^,]+),[^,]*,(?P<operands>[^,]*)"
)
OPERAND_TYPE = re.compile(r"\b(?:src|wei|dst)\w*:(\w+):")
ISA = re.compile(r"onednn_verbose,.*?cpu,isa:(.+)")

# Names of CUDA libraries' kernels. 884 to 16832 are the shapes of tensor core instructions from Volta to Ada,
# after a letter for the type; (w)gmma are those of Hopper; nvjet is cuBLAS's name since then.
# Source: kernels seen in public profiles of cuDNN 7 to 9, cuBLAS 10 to 13 and CUTLASS 2 to 3.
TENSOR_CORE = re.compile(
    r"[shi](884|8816|1688|16816|16832)|[hi]mma|w?gmma|tensorop|nvjet|xmma(?!.*_f32f32_f32f32)", re.IGNORECASE
)
SIMT = re.compile(r"simt|nvjet_ss|sgemm|scudnn|_ffma_|f32f32_f32f32", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """A primitive of oneDNN that was created or executed."""

    executed: bool  # False where it was only created
    kind: str  # one of ARITHMETIC_PRIMITIVES
    kernel: str  # the implementation with its instruction set, such as `brg_conv_fwd:avx512_core_bf16`
    types: tuple[str, ...]  # of the operands, the source first: f32, bf16, u8, ...


@contextmanager
def capture_output(descriptor: int = 1) -> Iterator[list[str]]:
    """Catch what is written to a file descriptor, also by C code; the list has the lines after the block."""
    lines: list[str] = []
    _flush()
    original = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield lines
        finally:
            _flush()
            os.dup2(original, descriptor)
            os.close(original)
            file.seek(0)
            lines.extend(file.read().decode(errors="replace").splitlines())


def read_primitives(log: Iterable[str]) -> list[Primitive]:
    matches = (match for line in log if (match := PRIMITIVE.search(line)))
    return [
        Primitive(
            executed=match["event"] == "exec",
            kind=match["kind"],
            kernel=match["kernel"],
            types=tuple(OPERAND_TYPE.findall(match["operands"])),
        )
        for match in matches
        if match["kind"] in ARITHMETIC_PRIMITIVES and OPERAND_TYPE.search(match["operands"])
    ]


def summarize_onednn_log(log: Sequence[str]) -> dict[str, Any]:
    """Return facts from the lines of oneDNN's verbose log.

    `isa`: the newest instructions that it may use, in its own words, if the log has them. `kernels`: the
    implementations of arithmetic that it created or ran, each with the type of its source, such as
    `brg_conv_fwd:avx512_core_vnni u8`.
    """
    isa = next((match[1].strip() for line in log if (match := ISA.search(line))), None)
    kernels = {f"{primitive.kernel} {primitive.types[0]}" for primitive in read_primitives(log)}
    return {**({"isa": isa} if isa else {}), "kernels": sorted(kernels)}


def uses_tensor_cores(kernel: str) -> bool:
    return TENSOR_CORE.search(kernel) is not None and SIMT.search(kernel) is None


def _flush() -> None:
    """Write out what Python and C still buffer; oneDNN writes through C's stdio."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
