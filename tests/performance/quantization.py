"""int8 beside fp32, on this machine's CPU: the bundled benchmark, run as on an instance, beside its goals.

Usage: quantization.py [--only PART ...] [--cache DIR]. Parts, of which the first four run by default:

networks   VGG16, VGG19, SSD300 and ResNet-50 on OpenVINO and ONNX Runtime in turn, batch 1: speed and size
masked     VGG16 on OpenVINO with the instructions of a Skylake (c5): no VNNI
layers     VGG16 on OpenVINO: how many layers are int8, by what kernel, and the CPU time of an image
accuracy   the loss of int8 on 1,797 digits, by the same method
vgg16, vgg19, ssd300
           one network alone on OpenVINO, fp32 and int8 and nothing beside them: the narrowest intervals for
           the goals; three minutes at most each, as `masked`
pytorch    VGG16 on PyTorch and OpenVINO in turn, batch 1 and 16: builds an environment of 1.5 GB, compiles

About eight minutes, the models (3 GB) built; wants a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bundled import environment, records_of

# Two settings share the time, and a third of the usual width is asked for.
ALONE = ["--precision", "int8", "--batch", "1", "--width", "0.02", "--max-seconds", "100"]

PARTS = {
    "networks": [
        "--network", "vgg16", "vgg19", "ssd300", "resnet50", "--engine", "openvino", "onnxruntime",
        "--precision", "int8", "--batch", "1", "--max-seconds", "35",
    ],
    "masked": ["--network", "vgg16", "--isa", "avx512_core", *ALONE],
    "vgg16": ["--network", "vgg16", *ALONE],
    "vgg19": ["--network", "vgg19", *ALONE],
    "ssd300": ["--network", "ssd300", *ALONE],
    "accuracy": [
        "--network", "digits", "--engine", "openvino", "onnxruntime", "--batch", "8", "--max-seconds", "5",
        "--calibration-images", "300",
        "--slice-seconds", "0.2",
    ],
    "pytorch": [
        "--network", "vgg16", "--engine", "openvino", "pytorch", "--batch", "1", "16", "--max-seconds", "60",
    ],
}  # fmt: skip
DEFAULT = ("networks", "masked", "layers", "accuracy")

# By case and setting: how many times as fast as the same engine's fp32. An instruction of VNNI multiplies
# four times as many numbers as one of fp32's FMA, and int8 weights are a quarter of the bytes: where fp32 is
# at its own peak, 4.0 is about all there is to be had.
FASTER = {
    ("vgg16 batch 1", "openvino int8"): 4.0,
    ("vgg19 batch 1", "openvino int8"): 4.0,
    ("ssd300 batch 1", "openvino int8"): 3.7,
    **{(f"{name} batch 1", "int8"): goal for name, goal in (("vgg16", 4.0), ("vgg19", 4.0), ("ssd300", 3.7))},
    ("vgg16 batch 1 avx512_core", "int8"): 2.4,
    **{(f"{name} batch 1", "onnxruntime int8"): 3.0 for name in ("vgg16", "vgg19", "ssd300", "resnet50")},
}  # fmt: skip
LAYERS = "layers"
PROFILE = """
import json, sys, time
import numpy as np, openvino
from collections import defaultdict
settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
image = np.random.default_rng(0).random((1, 3, 224, 224), dtype=np.float32)

def request(counted):
    graph = openvino.Core().read_model(sys.argv[1])
    graph.reshape([1, 3, 224, 224])
    compiled = openvino.Core().compile_model(graph, "CPU", {**settings, "PERF_COUNT": counted})
    return compiled.create_infer_request()

def cpu_ms(request):
    began = time.process_time()
    request.infer({0: image}, share_inputs=True, share_outputs=True)
    return 1000 * (time.process_time() - began)

timed, counted = request(False), request(True)
least = min(cpu_ms(timed) for _ in range(25))
cpu_ms(counted)
layers = defaultdict(int)
for layer in counted.profiling_info:
    if layer.status.name == "EXECUTED":
        layers[f"{layer.node_type} {layer.exec_type}"] += 1
print(json.dumps({"cpu_ms": least, "layers": layers}))
"""

SMALLER = 3.95
LARGE = ("vgg16", "vgg19", "ssd300")
LOST_POINTS = 0.1


def main() -> None:
    """Measure the selected parts, and print each figure beside its goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS, LAYERS], default=DEFAULT)
    parser.add_argument("--cache", default=str(Path("~/.cache/dlcloud/models").expanduser()))
    asked = parser.parse_args()
    lines = []
    for part in asked.only:
        began = time.monotonic()
        lines += layers(asked.cache) if part == LAYERS else lines_of(measured(part, asked.cache))
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print("\n".join(lines))


def measured(part: str, cache: str) -> list[dict]:
    """Run the benchmark and return its records."""
    python = environment("quantization_pytorch" if part == "pytorch" else "quantization")
    return records_of(python, "quantization", ["--cache", cache, *PARTS[part]])


def layers(cache: str) -> list[str]:
    """Return by what kernels VGG16 is run in fp32 and in int8, and the CPU time of an image on one thread.

    The least CPU time of 25 runs hardly depends on what else runs: on a busy machine it varied by 4 %, where
    the speed varied by a factor of ten.
    """
    python = environment("quantization")
    folder = Path(cache)
    int8 = sorted(folder.glob("vgg16-*-int8-*-ov*/model.xml"))
    fp32 = sorted(file for file in folder.glob("vgg16-*.onnx") if "int8" not in file.name)
    if not int8 or not fp32:
        return ["layers: no VGG16 is in the cache yet: run --only vgg16 first"]
    lines, spent = [], {}
    for isa in ("DEFAULT", "AVX512_CORE"):
        for name, file in (("fp32", fp32[-1]), ("int8", int8[-1])):
            ran = profile(python, file, isa)
            spent[name] = ran["cpu_ms"]
            shown = ", ".join(f"{count} {kind}" for kind, count in ran["layers"].items())
            lines.append(f"vgg16 {name}, {isa}: {spent[name]:.1f} ms of CPU time: {shown}")
        lines.append(
            f"vgg16, {isa}: fp32 takes {spent['fp32'] / spent['int8']:.2f} times the CPU time of int8"
        )
    return lines


def profile(python: str, file: Path, isa: str) -> dict:
    """Return the CPU time of an image in ms, and how many layers run by each kernel."""
    done = subprocess.run(
        [python, "-c", PROFILE, file],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def lines_of(records: list[dict]) -> list[str]:
    """Return a line for each speed-up, size and accuracy, beside its goal where there is one."""
    facts = {
        (record["case"], record["setting"]): record for record in records if record["record"] == "result"
    }
    lines = []
    for record in records:
        if record["record"] == "comparison":
            setting = record["case"], record["candidate"]
            lines.append(compared(record, FASTER.get(setting), facts[setting]))
            lines.extend(of_facts(*setting, facts[setting]["facts"]))
        if record["record"] == "overall":
            lines.append(compared(record, None, facts[record["case"], record["candidate"]]))
    return lines


def compared(record: dict, goal: float | None, result: dict) -> str:
    """Return a speed-up with its interval."""
    beside = "" if goal is None else f"  goal {goal:g}  {'met' if record['ratio'] >= goal else 'MISSED'}"
    best = "the best fp32, " if record["record"] == "overall" else ""
    shaky = "" if result["stable"] else "  (unstable: " + "; ".join(result["warnings"]) + ")"
    return (
        f"{record['case']}: {record['candidate']} over {best}{record['baseline']}:"
        f" {record['ratio']:.2f} ({record['low']:.2f} to {record['high']:.2f}) times as fast{beside}{shaky}"
    )


def of_facts(case: str, setting: str, facts: dict) -> list[str]:
    """Return a setting's size and accuracy."""
    lines = []
    if setting.endswith("int8") and case.startswith(LARGE):
        smaller = facts["times_smaller"]
        met = "met" if smaller >= SMALLER else "MISSED"
        lines.append(f"{case}: {setting}: {smaller:.2f} times smaller  goal {SMALLER}  {met}")
    if "accuracy_drop_points" in facts and setting.endswith("int8"):
        lost = facts["accuracy_drop_points"]
        met = "met" if lost <= LOST_POINTS else "MISSED"
        lines.append(
            f"{case}: {setting}: {facts['accuracy_percent']:.2f} % of {facts['images_judged']} right,"
            f" {lost:.2f} points lost  goal {LOST_POINTS}  {met}"
        )
    return lines


if __name__ == "__main__":
    main()
