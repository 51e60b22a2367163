"""int8 beside fp32, on this machine's CPU: the bundled benchmark, run as on an instance, beside its goals.

Usage: quantization.py [--only PART ...] [--cache DIR]. Parts, of which all but the last run by default:

networks   VGG16, VGG19, SSD300 and ResNet-50 on OpenVINO and ONNX Runtime in turn, batch 1: speed and size
masked     VGG16 on OpenVINO with the instructions of a Skylake (c5): no VNNI
accuracy   what int8 loses on 1,797 digits, by the same method
pytorch    VGG16 on PyTorch and OpenVINO in turn, batch 1 and 16: builds an environment of 1.5 GB, compiles

About eight minutes, the models (3 GB) built; wants a quiet machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

PARTS = {
    "networks": [
        "--network", "vgg16", "vgg19", "ssd300", "resnet50", "--engine", "openvino", "onnxruntime",
        "--batch", "1", "--max-seconds", "45",
    ],
    "masked": ["--network", "vgg16", "--isa", "avx512_core", "--batch", "1", "--max-seconds", "45"],
    "accuracy": [
        "--network", "digits", "--engine", "openvino", "onnxruntime", "--batch", "8", "--max-seconds", "5",
        "--calibration-images", "300",
        "--slice-seconds", "0.2",
    ],
    "pytorch": [
        "--network", "vgg16", "--engine", "openvino", "pytorch", "--batch", "1", "16", "--max-seconds", "60",
    ],
}  # fmt: skip
DEFAULT = ("networks", "masked", "accuracy")

# By case and setting: how many times as fast as the same engine's fp32.
FASTER = {
    ("vgg16 batch 1", "openvino int8"): 4.0,
    ("vgg19 batch 1", "openvino int8"): 4.0,
    ("ssd300 batch 1", "openvino int8"): 3.7,
    ("vgg16 batch 1 avx512_core", "int8"): 2.4,
    **{(f"{name} batch 1", "onnxruntime int8"): 3.0 for name in ("vgg16", "vgg19", "ssd300", "resnet50")},
}  # fmt: skip
SMALLER = 3.95
LARGE = ("vgg16", "vgg19", "ssd300")
LOST_POINTS = 0.1


def main() -> None:
    """Measure the parts that are asked for, and print each figure beside its goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=DEFAULT)
    parser.add_argument("--cache", default=str(Path("~/.cache/dlcloud/models").expanduser()))
    asked = parser.parse_args()
    lines = []
    for part in asked.only:
        lines += told(measured(part, asked.cache))
    print("\n".join(lines))


def measured(part: str, cache: str) -> list[dict]:
    """Run the benchmark and return its records."""
    python = environment("quantization_pytorch" if part == "pytorch" else "quantization")
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records.jsonl")
        command = [python, "-m", "benchmarks.quantization", "--output", records, "--cache", cache]
        done = subprocess.run([*command, *PARTS[part]], cwd=ROOT / "dlcloud", check=False)
        if done.returncode:
            print(f"{part}: the benchmark ended with status {done.returncode}")
        return [json.loads(line) for line in records.read_text().splitlines()]


def told(records: list[dict]) -> list[str]:
    """Return a line for each speed-up, size and accuracy, beside its goal where there is one."""
    facts = {(each["case"], each["setting"]): each for each in records if each["record"] == "result"}
    lines = []
    for each in records:
        if each["record"] == "comparison":
            setting = each["case"], each["candidate"]
            lines.append(compared(each, FASTER.get(setting), facts[setting]))
            lines.extend(of_facts(*setting, facts[setting]["facts"]))
        if each["record"] == "overall":
            lines.append(compared(each, None, facts[each["case"], each["candidate"]]))
    return lines


def compared(each: dict, goal: float | None, result: dict) -> str:
    """Return a speed-up with its interval."""
    beside = "" if goal is None else f"  goal {goal:g}  {'met' if each['ratio'] >= goal else 'MISSED'}"
    best = "the best fp32, " if each["record"] == "overall" else ""
    shaky = "" if result["stable"] else "  (unstable: " + "; ".join(result["warnings"]) + ")"
    return (
        f"{each['case']}: {each['candidate']} over {best}{each['baseline']}:"
        f" {each['ratio']:.2f} ({each['low']:.2f} to {each['high']:.2f}) times as fast{beside}{shaky}"
    )


def of_facts(case: str, setting: str, facts: dict) -> list[str]:
    """Return what a setting's size and accuracy come to."""
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


def environment(name: str) -> str:
    """Return the interpreter of the benchmark's environment, built by the program that instances use."""
    built = subprocess.run(
        [sys.executable, ROOT / "templates/environment.py", f"performance-{name}"],
        input=(ROOT / f"dlcloud/benchmarks/requirements/{name}.txt").read_text(),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(built.stdout.splitlines()[-1])["python"]


if __name__ == "__main__":
    main()
