"""How well measured peaks repeat: the same peak in fresh processes, one after the other.

    PYTHON tests/performance/peaks.py [--repeats 5] [--seconds 1] [--engine pytorch]

PYTHON is that of an environment with `dlcloud/benchmarks/requirements/quantization_pytorch.txt`, which has
OpenVINO, ONNX Runtime and PyTorch; `--engine tensorflow` and `--engine bigdl` take those of their own. Each
peak is measured as benchmarks measure it, in as long as they take. Printed are the median and the spread,
greatest less least as a share of the median, of operations and of bandwidth.
"""

import json
import os
import subprocess
import sys
from argparse import SUPPRESS
from functools import partial
from importlib import import_module
from statistics import median

from common import PYTHON, ROOT, parser_of, verdict

PRECISIONS = {
    "pytorch": ("fp32", "bf16", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "onnxruntime": ("fp32", "int8"),
    "tensorflow": ("fp32", "bf16"),
    "bigdl": ("fp32", "int8"),
}
USUAL = ("pytorch", "openvino", "onnxruntime")
GOAL = 0.03


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--engine", choices=PRECISIONS, action="append")
    parser.add_argument("--inside", nargs=2, help=SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(*options.inside, options.seconds)))
        return
    met = []
    for engine in options.engine or USUAL:
        for precision in PRECISIONS[engine]:
            peaks = [measure_alone(engine, precision, options.seconds) for _ in range(options.repeats)]
            met.append(report(f"{engine} {precision}", peaks))
    print(f"{sum(met)} of {len(met)} peaks repeat within {GOAL:.0%}")


def measure_alone(engine: str, precision: str, seconds: float) -> tuple[float, float]:
    done = subprocess.run(
        [PYTHON, __file__, "--seconds", str(seconds), "--inside", engine, precision],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    flop_per_s, bytes_per_s = json.loads(done.stdout.splitlines()[-1])
    return flop_per_s, bytes_per_s


def measure(engine: str, precision: str, seconds: float) -> tuple[float, float]:
    """Return operations and bytes a second."""
    sys.path[0] = str(ROOT / "dlcloud")
    threads = len(os.sched_getaffinity(0))
    if engine == "pytorch":
        torch_roofline = import_module("benchmarks.harness.torch_roofline")
        peak = torch_roofline.measure_peak(precision, device="cpu", seconds=seconds)
    elif engine == "tensorflow":
        peak = import_module("benchmarks.tensorflow_cpu.training").measure_peak(precision, seconds)
    elif engine == "bigdl":
        bigdl_engine = import_module("benchmarks.quantization.bigdl_engine")
        bigdl_engine.start_java(threads)
        peak = bigdl_engine.measure_peak(precision, seconds)
    else:
        load = import_module(f"benchmarks.quantization.{engine}_engine")._load
        if engine == "openvino":
            job = import_module("benchmarks.quantization.inference").InferenceJob(
                model="none", network="peak", precision=precision, threads=threads, seed=0
            )
            load = partial(load, job=job)
        else:
            load = partial(load, threads=threads)
        onnx_graphs = import_module("benchmarks.quantization.onnx_graphs")
        peak = onnx_graphs.measure_peak(load, precision, seconds)
    return peak.flop_per_s, peak.bytes_per_s


def report(name: str, peaks: list[tuple[float, float]]) -> bool:
    """Print a peak's medians and spreads, and return whether both repeat well."""
    spreads = []
    for values, unit in zip(zip(*peaks, strict=True), ("GFLOP/s", "GB/s"), strict=True):
        middle = median(values)
        spreads.append((max(values) - min(values)) / middle)
        print(
            f"{name:18} {middle / 1e9:9.1f} {unit:8} spread {spreads[-1]:6.1%}"
            f" (goal {GOAL:.0%}: {verdict(spreads[-1] <= GOAL)})",
            flush=True,
        )
    return max(spreads) <= GOAL


if __name__ == "__main__":
    main()
