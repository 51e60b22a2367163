"""How well measured peaks repeat: the same peak in fresh processes, one after the other.

    PYTHON tests/performance/peaks.py [--repeats 5] [--seconds 1] [--engine pytorch]

PYTHON is that of an environment with `dlcloud/benchmarks/requirements/quantization_pytorch.txt`, which has
OpenVINO, ONNX Runtime and PyTorch; `--engine tensorflow` and `--engine bigdl` take those of their own. Each
peak is measured as benchmarks measure it, in as long as they take. Printed are the median and the spread,
greatest less least as a share of the median, of operations and of bandwidth.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--engine", choices=PRECISIONS, action="append")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
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
        [sys.executable, __file__, "--seconds", str(seconds), "--inside", engine, precision],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    flop_per_s, bytes_per_s = json.loads(done.stdout.splitlines()[-1])
    return flop_per_s, bytes_per_s


def measure(engine: str, precision: str, seconds: float) -> tuple[float, float]:
    """Return operations and bytes a second."""
    sys.path[0] = str(ROOT / "dlcloud")
    threads = len(os.sched_getaffinity(0))
    if engine == "pytorch":
        from benchmarks.harness import torch_roofline  # noqa: PLC0415

        peak = torch_roofline.measure_peak(precision, device="cpu", seconds=seconds)
    elif engine == "tensorflow":
        from benchmarks.tensorflow_cpu import training  # noqa: PLC0415

        peak = training.measure_peak(precision, seconds)
    elif engine == "bigdl":
        from benchmarks.quantization import bigdl_engine  # noqa: PLC0415

        bigdl_engine.start_java(threads)
        peak = bigdl_engine.measure_peak(precision, seconds)
    else:
        peak = measure_graphs(engine, precision, threads, seconds)
    return peak.flop_per_s, peak.bytes_per_s


def measure_graphs(engine: str, precision: str, threads: int, seconds: float):
    from functools import partial  # noqa: PLC0415

    from benchmarks.quantization import onnx_graphs  # noqa: PLC0415

    if engine == "onnxruntime":
        from benchmarks.quantization import onnxruntime_engine  # noqa: PLC0415

        load = partial(onnxruntime_engine._load, threads=threads)
    else:
        from benchmarks.quantization import inference, openvino_engine  # noqa: PLC0415

        job = inference.InferenceJob(
            model="none", network="peak", precision=precision, threads=threads, seed=0
        )
        load = partial(openvino_engine._load, job=job)
    return onnx_graphs.measure_peak(load, precision, seconds)


def report(name: str, peaks: list[tuple[float, float]]) -> bool:
    """Print a peak's medians and spreads, and return whether both repeat well."""
    spreads = []
    for values, unit in zip(zip(*peaks, strict=True), ("GFLOP/s", "GB/s"), strict=True):
        middle = median(values)
        spreads.append((max(values) - min(values)) / middle)
        verdict = "met" if spreads[-1] <= GOAL else "MISSED"
        print(
            f"{name:18} {middle / 1e9:9.1f} {unit:8} spread {spreads[-1]:6.1%} (goal {GOAL:.0%}: {verdict})",
            flush=True,
        )
    return max(spreads) <= GOAL


if __name__ == "__main__":
    main()
