"""Catch what the libraries say of the kernels they run; runs inside workers."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .proof import Kernels, cuda_kernels, onednn_kernels
from .settings import Precision


@contextmanager
def kernels(device: str, precision: Precision) -> Iterator[list[Kernels]]:
    """Watch the kernels of a block; the list yielded holds them afterwards, as its only element."""
    caught: list[Kernels] = []
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            yield caught
        names = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
        caught.append(cuda_kernels(names, precision))
        return
    with _stdout() as lines, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        yield caught
    caught.append(onednn_kernels(lines, precision))


@contextmanager
def _stdout() -> Iterator[list[str]]:
    """Catch what is written to file descriptor 1, also by C code, line by line."""
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 1)
        try:
            yield lines
        finally:
            # oneDNN writes through C's stdio, whose buffer must be empty before the descriptor is put back.
            _flush_c()
            os.dup2(kept, 1)
            os.close(kept)
            caught.seek(0)
            lines.extend(caught.read().decode(errors="replace").splitlines())


def _flush_c() -> None:
    import ctypes  # noqa: PLC0415 - here only

    ctypes.CDLL(None).fflush(None)
