"""Train one step and report which kernels computed it, as the library itself logs them; runs in workers.

oneDNN prints every primitive that it runs where ONEDNN_VERBOSE is set; on a GPU the profiler lists the
kernels.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..harness.kernels import capture_output, uses_tensor_cores
from ..harness.workload import UntimedWorkload
from .loading import tf
from .training import Training, openmp_runtime, train

WORKING = ("convolution", "matmul", "inner_product", "gemm_api")
"""The primitives that do the arithmetic, as oneDNN names them; the last is the product that Eigen uses."""

TYPES = re.compile(r"(?:src|wei|dst|diff_src|diff_wei|diff_dst)[_:](bf16|f16|f32|s8|u8)")

SHOWN = 4


def prove(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of train
    """Train one step and return which kernels ran; takes the arguments of training.train."""
    training = train(**arguments)
    facts = _gpu_facts(training) if arguments.get("device") == "gpu" else _cpu_facts(training)
    return UntimedWorkload(facts={**facts, "openmp_runtime": openmp_runtime()})


def onednn_facts(lines: Iterable[str]) -> dict[str, Any]:
    """Return facts from oneDNN's log.

    `onednn_isa` is the newest instruction set it may use, `onednn_threads` its thread pool; `computed_in`
    counts the working primitives by the narrowest type of their operands, `kernels` by primitive, type and
    implementation, the commonest first.
    """
    isa = threads = None
    kernels = Counter[tuple[str, str, str]]()
    for line in lines:
        fields = line.strip().split(",")
        if not fields[0].startswith("onednn_verbose"):
            continue
        if "info" in fields and "cpu" in fields:
            isa = next((field[4:] for field in fields if field.startswith("isa:")), isa)
            threads = next((field[8:] for field in fields if field.startswith("runtime:")), threads)
        if "exec" in fields:
            at = fields.index("exec")
            kind, implementation = fields[at + 2 : at + 4]
            kernels[kind, _narrowest(line), implementation] += 1
    working = Counter({key: count for key, count in kernels.items() if key[0] in WORKING})
    types = Counter(narrow for (_, narrow, _), count in working.items() for _ in range(count))
    return {
        "onednn_isa": isa,
        "onednn_threads": threads,
        "onednn_primitives": kernels.total(),
        "computed_in": ", ".join(f"{count} {name}" for name, count in types.most_common())
        or "none of oneDNN's kernels",
        "kernels": ", ".join(f"{count} {' '.join(key)}" for key, count in working.most_common(SHOWN)),
    }


def kernel_facts(names: Iterable[str]) -> dict[str, Any]:
    counted = Counter(names)
    on_tensor_cores = Counter({name: count for name, count in counted.items() if uses_tensor_cores(name)})
    shown = ", ".join(f"{count} {name[:80]}" for name, count in on_tensor_cores.most_common(SHOWN))
    return {
        "gpu_kernels": counted.total(),
        "tensor_core_kernels": on_tensor_cores.total(),
        "kernels": shown,
    }


def _narrowest(line: str) -> str:
    types = set(TYPES.findall(line))
    return next((name for name in ("u8", "s8", "bf16", "f16") if name in types), "f32")


def _cpu_facts(training: Training) -> dict[str, Any]:
    with capture_output() as log:
        training.step()
    return onednn_facts(log)


def _gpu_facts(training: Training) -> dict[str, Any]:
    # The first step compiles and tries algorithms, whose kernels prove nothing.
    training.step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        training.step()
        tf.profiler.experimental.stop()
        return kernel_facts(name for path in Path(folder).rglob("*.xplane.pb") for name in _gpu_events(path))


def _gpu_events(path: Path) -> Iterable[str]:
    from tensorflow.tsl.profiler.protobuf import (  # noqa: PLC0415 - GPUs only
        xplane_pb2,
    )

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                # One line a CUDA stream holds the kernels; others repeat them by operation.
                if line.name.startswith("Stream"):
                    yield from (plane.event_metadata[event.metadata_id].name for event in line.events)
