"""Say by what instructions and kernels a network is really computed, from what oneDNN tells of itself."""

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

WEIGHTED = {"convolution", "inner_product", "matmul"}
"""The primitives that do the work, as oneDNN names them."""

# Source: oneDNN developer guide, "Verbose Mode": comma-separated fields, the primitive's kind, then its
# implementation, and descriptors such as `src:u8::blocked:acdb::f0` further on.
USED = re.compile(
    r"onednn_verbose,[^\n]*?,(?:create:\w+|exec),cpu,(?P<kind>\w+),(?P<kernel>[^,\n]+),[^\n]*?\bsrc\w*:(?P<type>\w+):"
)
ISA = re.compile(r"onednn_verbose,.*?cpu,isa:(?P<isa>[^\n]+)")


def told_by_onednn(run: Callable[[], object]) -> dict[str, Any]:
    """Run once, while oneDNN tells what it does, and return what it told.

    oneDNN must have been asked to tell: by ONEDNN_VERBOSE before it was loaded, or through its owner.

    Returns:
        `isa`: the newest instructions that it may use, in its own words, where it told them. `kernels`: the
        implementations of layers with weights that it made or ran, each with the type of its input, such as
        `brg_conv_fwd:avx512_core_vnni u8`.
    """
    text = printed_by(run)
    isa = ISA.search(text)
    used = [match for match in USED.finditer(text) if match["kind"] in WEIGHTED]
    kernels = sorted({f"{match['kernel']} {match['type']}" for match in used})
    return {**({"isa": isa["isa"].strip()} if isa else {}), "kernels": kernels}


def printed_by(run: Callable[[], object]) -> str:
    """Return what a call writes to the process's standard output, C and C++ code included."""
    _flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 1)
            run()
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")


def _flush() -> None:
    """Write out what Python and C still hold back."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
