"""BigDL's own int8 beside its fp32 on VGG16, and what int8 costs on 1,797 digits, beside its rule in NumPy.

The article: 1.69 to 2.04 times as fast, 3.9 times smaller, accuracy within 0.1 points.

Takes Java and Python 3.11, and about six minutes. `--only speed` or `--only accuracy` runs a part; what
follows `--` goes to the benchmark, such as `-- --network tiny`.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

from bundled import ROOT, environment, records_of

FASTER, SMALLER, DROP = 1.69, 3.9, 0.1

RULE = """
import json, sys
import numpy as np
import onnx
from onnx import numpy_helper
from benchmarks.harness.digits import load_folds
from benchmarks.quantization import digits, models
import bigdl_rule
from pathlib import Path

def run(path, images, *, int8):
    model = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = images
    for node in model.graph.node:
        if node.op_type == "Conv":
            weight, bias = (arrays[name] for name in node.input[1:])
            values = convolved(values, weight, bias, int8=int8)
        elif node.op_type == "Gemm":
            weight, bias = (arrays[name] for name in node.input[1:])
            values = bigdl_rule.linear(values, weight, bias) if int8 else values @ weight.T + bias
        elif node.op_type == "Relu":
            values = np.maximum(values, 0)
        elif node.op_type == "MaxPool":
            n, c, h, w = values.shape
            values = values.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
        elif node.op_type == "Flatten":
            values = values.reshape(len(values), -1)
        else:
            raise ValueError(node.op_type)
    return values

def convolved(values, weight, bias, *, int8):
    if int8:
        return bigdl_rule.convolution(values, weight, bias, pad=1)
    layer = digits.Convolution(weight.reshape(len(weight), -1), bias)
    return layer.forward(values)

source = models.fp32_model(models.BuildJob(network="digits", seed=0, cache=sys.argv[1]))
right = {False: 0, True: 0}
judged = 0
for number, fold in enumerate(load_folds(0)):
    for int8 in right:
        answers = run(str(source / f"fold{number}.onnx"), fold.held_out, int8=int8).argmax(axis=1)
        right[int8] += int((answers == fold.held_out_labels).sum())
    judged += len(fold.held_out_labels)
print(json.dumps({"fp32": 100 * right[False] / judged, "rule": 100 * right[True] / judged}))
"""


def main() -> None:
    """Measure what is asked for and print it beside the article's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("speed", "accuracy"), default=None)
    parser.add_argument("rest", nargs="*", help="after --: handed on to the benchmark")
    arguments = parser.parse_args()
    python = environment("quantization")
    if arguments.only != "accuracy":
        speed(python, arguments.rest)
    if arguments.only != "speed":
        accuracy(python)


def speed(python: str, rest: list[str]) -> None:
    """Print BigDL's int8 over its fp32, and what both are beside OpenVINO's fp32."""
    arguments = ["--network", "vgg16", "--engine", "openvino", "bigdl", "--batch", "8", "--precision", "int8"]
    records = records_of(python, "quantization", [*arguments, "--max-seconds", "120", *rest])
    facts = {record["setting"]: record["facts"] for record in records if record["record"] == "result"}
    for record in records:
        if record["record"] == "comparison" and record["candidate"] == "bigdl int8":
            smaller = facts["bigdl int8"]["times_smaller"]
            faster = f"{shown(record)} times its fp32{judged(record, record['ratio'], FASTER)}"
            smaller_too = f"{smaller:.2f} times smaller{judged(record, smaller, SMALLER)}"
            print(f"{record['case']}: BigDL int8 {faster}; {smaller_too}")
        if record["record"] == "overall" and record["candidate"].startswith("bigdl"):
            print(
                f"{record['case']}: {record['candidate']} {shown(record)} times"
                f" {record['baseline']}, the best fp32"
            )


def accuracy(python: str) -> None:
    """Print what BigDL's int8 and its rule lose on the digits."""
    cache = Path("~/.cache/dlcloud/models").expanduser()
    short = ["--rounds", "1", "--slice-seconds", "0.1", "--max-seconds", "1", "--batch", "8"]
    records = records_of(python, "quantization", ["--network", "digits", "--engine", "bigdl", *short])
    for record in records:
        if record["record"] == "result" and record["setting"].endswith("int8"):
            facts = record["facts"]
            drop = facts["accuracy_drop_points"]
            print(
                f"digits: BigDL fp32 {facts['baseline_accuracy_percent']:.2f} %, int8"
                f" {facts['accuracy_percent']:.2f} %: {drop:.2f} points lost, article {DROP}"
                f" {'met' if drop <= DROP else 'MISSED'}"
            )
    done = subprocess.run(
        [python, "-c", RULE, cache],
        cwd=ROOT / "dlcloud",
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests/benchmarks/samples")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    rule = json.loads(done.stdout)
    print(f"digits: the rule in NumPy {rule['rule']:.2f} %, fp32 in NumPy {rule['fp32']:.2f} %")


def judged(comparison: dict[str, str], value: float, goal: float) -> str:
    """Return the goal and whether it is met; nothing for another network than the article's."""
    if not comparison["case"].startswith("vgg16 "):
        return ""
    return f", goal {goal} {'met' if value >= goal else 'MISSED'}"


def shown(comparison: dict[str, float]) -> str:
    """Return a ratio with its interval."""
    return f"{comparison['ratio']:.3g} ({comparison['low']:.3g} to {comparison['high']:.3g})"


if __name__ == "__main__":
    main()
