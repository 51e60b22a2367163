"""int8 beside fp32 on the same engine, on this machine: the bundled benchmark, run as on an instance.

Prints the speed-up with its interval, and the size of the models, beside the goals (3 times as fast on a CPU
with AVX-512 VNNI, 3.9 times smaller). Arguments are handed on to the benchmark.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FASTER, SMALLER = 3.0, 3.9


def main() -> None:
    """Build the pinned environment, measure, print."""
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records.jsonl")
        arguments = sys.argv[1:] or ["--network", "vgg16", "resnet50", "--batch", "1"]
        subprocess.run(
            [python, "-m", "benchmarks.quantization", "--output", records, *arguments],
            cwd=ROOT / "dlcloud",
            check=True,
        )
        told = [json.loads(line) for line in records.read_text().splitlines()]
    sizes = {
        (each["case"], each["setting"]): each["facts"]["model_bytes"]
        for each in told
        if each["record"] == "result"
    }
    for each in told:
        if each["record"] == "comparison" and each["metric"] == "throughput":
            smaller = sizes[each["case"], each["baseline"]] / sizes[each["case"], each["candidate"]]
            print(
                f"{each['case']}: int8 {each['ratio']:.2f} ({each['low']:.2f} to {each['high']:.2f}) times"
                f" as fast,"
                f" goal {FASTER} {'met' if each['ratio'] >= FASTER else 'MISSED'};"
                f" {smaller:.2f} times smaller, goal {SMALLER} {'met' if smaller >= SMALLER else 'MISSED'}"
            )


def environment() -> str:
    """Return the interpreter of the benchmark's environment, built by the program that instances use."""
    requirements = (ROOT / "dlcloud/benchmarks/requirements/quantization.txt").read_text()
    built = subprocess.run(
        [sys.executable, ROOT / "templates/environment.py", "performance-quantization"],
        input=requirements,
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(built.stdout.splitlines()[-1])["python"]


main()
