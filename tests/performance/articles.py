"""The speed-ups of the articles that dlcloud repeats, on this machine's CPU, by the bundled benchmarks.

    python tests/performance/articles.py [--only PART ...]

int8 over fp32, each engine over its own:
    networks    VGG16, VGG19, SSD300 and ResNet-50 on OpenVINO and ONNX Runtime in turn, batch 1
    vgg16, vgg19, ssd300, masked
                one network alone on OpenVINO: the narrowest intervals, three minutes at most each;
                `masked` is VGG16 with the instructions of a Skylake (c5), without VNNI
    accuracy    what int8 loses on 1,797 digits, by the same method
    bigdl, bigdl-accuracy
                BigDL's int8 (needs Java): 1.69 to 2.04 times as fast in the article, 3.9 times smaller
training, tuned over fp32 as it comes:
    resnet50, vgg16-training, mobilenet, efficientnet, digits
                bf16 and more by PyTorch; `digits` compares what is learned
    optimizations, optimizations-mobilenet
                the gain of each optimization
    tensorflow-resnet50, tensorflow-vgg16
                the best setting, found by the search, in fresh processes

By default all but vgg16, vgg19, ssd300 and the optimizations: 35 minutes on two quiet cores, the models
(3 GB) built. An instruction of VNNI multiplies four times as many numbers as one of fp32's FMA, and int8
weights are a quarter of the bytes: where fp32 is at its own peak, 4.0 is about all there is to be had.
TensorFlow's search turns those knobs first that earn most, and says for which the time was up; stock takes
seven seconds a step of ResNet-50 at batch 32, so that it searches at batch 16.
"""

from dataclasses import dataclass, field
from typing import Any

from common import parser_of, python_of, records_of, verdict

SMALLER, BIGDL_SMALLER, MOST_DROP_POINTS, MOST_TRAINING_DROP_POINTS = 3.95, 3.9, 0.1, 0.5
PLAIN_BEST, BEST = "bf16+channels_last+heap", "bf16+channels_last+depthwise+heap"


@dataclass(frozen=True)
class Part:
    """A run of a benchmark; `goals` are times as fast, by the beginning of "case, setting" and its end."""

    benchmark: str
    environment: str
    words: str
    goals: dict[tuple[str, str], float] = field(default_factory=dict)
    is_usual: bool = True


def int8(words: str, goals: dict[tuple[str, str], float] | None = None, *, usual: bool = True) -> Part:
    return Part("quantization", "quantization", f"--precision int8 {words}", goals or {}, usual)


def alone(network: str, goal: float, more: str = "", *, usual: bool = False) -> Part:
    words = f"--network {network} --batch 1 --width 0.02 --max-seconds 100 {more}"
    return int8(words, {(network, "int8"): goal}, usual=usual)


def training(words: str, share: float | None = None, *, usual: bool = True) -> Part:
    """`share` is how much of fp32's time is the goal."""
    goals = {} if share is None else {("", ""): 1 / share}
    common = "--device cpu --max-seconds 50 --slice-seconds 2"
    return Part("mixed_precision", "mixed_precision", f"{common} {words}", goals, usual)


def tensorflow(network: str, batch: int, goal: float) -> Part:
    # Enough for effects this large: six rounds are the fewest that can name a winner.
    words = (
        "--rounds 6 --max-seconds 60 --warm-up-seconds 15 --width 0.1 --search-rounds 2 --search-seconds 5"
    )
    words += f" --network {network} --batch {batch} --search-batch {min(batch, 16)} --settings stock today"
    return Part(
        "tensorflow_cpu", "tensorflow", f"{words} --search-total-seconds 220", {(network, "today"): goal}
    )


DIGITS = "--network digits --batch 8 --slice-seconds 0.2 --max-seconds 5"
PARTS = {
    "networks": int8(
        "--network vgg16 vgg19 ssd300 resnet50 --engine openvino onnxruntime --batch 1 --max-seconds 35",
        {
            ("vgg", "openvino int8"): 4.0,
            ("ssd300", "openvino int8"): 3.7,
            ("", "onnxruntime int8"): 3.0,
        },
    ),
    "masked": alone("vgg16", 2.4, "--isa avx512_core", usual=True),
    "vgg16": alone("vgg16", 4.0),
    "vgg19": alone("vgg19", 4.0),
    "ssd300": alone("ssd300", 3.7),
    "accuracy": int8(f"{DIGITS} --engine openvino onnxruntime --calibration-images 300"),
    "bigdl": int8(
        "--network vgg16 --engine openvino bigdl --batch 8 --max-seconds 120", {("vgg16", "bigdl int8"): 1.69}
    ),
    "bigdl-accuracy": int8(f"{DIGITS} --engine bigdl --rounds 1"),
    "resnet50": training(f"--network resnet50 --batch 8 --setting {PLAIN_BEST}", 0.43),
    "vgg16-training": training(f"--network vgg16 --batch 4 --setting {PLAIN_BEST}", 0.45),
    "mobilenet": training(f"--network mobilenet --batch 8 --setting {BEST}", 0.57),
    "efficientnet": training(f"--network efficientnet-b0 --batch 8 --setting {BEST}", 0.70),
    "digits": training(f"--network digits --max-seconds 5 --setting bf16 {PLAIN_BEST}"),
    "optimizations": training(
        "--network resnet50 --batch 8 --setting fp32+channels_last fp32+channels_last+heap bf16"
        f" bf16+channels_last {PLAIN_BEST} bf16+channels_last+compile+heap",
        usual=False,
    ),
    "optimizations-mobilenet": training(
        "--network mobilenet --batch 8 --setting fp32+channels_last+depthwise+heap bf16 bf16+channels_last"
        f" bf16+channels_last+depthwise {BEST} bf16+channels_last+compile+depthwise+heap",
        usual=False,
    ),
    "tensorflow-resnet50": tensorflow("resnet50", 32, 3.4),
    "tensorflow-vgg16": tensorflow("vgg16", 8, 3.6),
}
SHOWN = (
    *("knobs", "computed_in", "layers_computed_in", "kernels", "kernels_in_precision", "kernels_in_all"),
    *("earned", "loss_steps", "loss_first", "loss_last", "baseline_loss_first", "baseline_loss_last"),
    *("loss_falls_likewise", "loss_curve", "largest_gap_of_the_loss_curves", "p_value_of_equal_accuracy"),
)
"""Facts that explain a figure."""


def main() -> None:
    parser = parser_of(__doc__)
    usual = [name for name, part in PARTS.items() if part.is_usual]
    parser.add_argument("--only", nargs="+", choices=PARTS, default=usual, metavar="PART")
    for name in parser.parse_args().only:
        part = PARTS[name]
        print(f"{name}:")
        report(part, records_of(python_of(part.environment), part.benchmark, part.words.split()))


def report(part: Part, records: list[dict[str, Any]]) -> None:
    """Print each speed-up, size and accuracy, next to its goal where there is one, and what explains it."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if " search " not in record.get("case", ""):
            kinds.setdefault(record["record"], []).append(record)
    for one in (*kinds.get("comparison", []), *kinds.get("overall", [])):
        best = "the best fp32, " if one["record"] == "overall" else ""
        goal = None if best else goal_of(part, one)
        text = f"  goal {goal:.2f} {verdict(one['ratio'] >= goal)}" if goal else ""
        print(
            f"  {one['case']}: {one['candidate']} over {best}{one['baseline']}: {one['ratio']:.2f}"
            f" ({one['low']:.2f} to {one['high']:.2f}) times as fast, {1 / one['ratio']:.1%} of the time"
            + text
        )
    for one in kinds.get("result", []):
        rate = one["metrics"].get("throughput", {}).get("value", 0.0)
        peak = one["metrics"].get("peak_memory", {}).get("value", 0.0)
        print(f"  {one['case']}, {one['setting']}: {rate:.2f} images/s, peak {peak:.0f} MiB")
        for line in (*judge(part, one), *(f"warning: {warning}" for warning in one["warnings"])):
            print(f"    {line}")
    for kind, text in (("skip", "reason"), ("failure", "message")):
        for one in kinds.get(kind, []):
            print(f"  {kind}: {one['case']}, {one['setting']}: {one[text]}", flush=True)


def goal_of(part: Part, comparison: dict[str, Any]) -> float | None:
    for (case, setting), goal in part.goals.items():
        if comparison["case"].startswith(case) and comparison["candidate"].endswith(setting):
            return goal
    return None


def judge(part: Part, result: dict[str, Any]) -> list[str]:
    """Return lines of a result's size, accuracy and further facts."""
    facts, lines, is_training = result["facts"], [], part.benchmark == "mixed_precision"
    if "times_smaller" in facts and not result["case"].startswith(("digits", "resnet50")):
        smaller = facts["times_smaller"]
        least = BIGDL_SMALLER if result["setting"].startswith("bigdl") else SMALLER
        lines.append(f"{smaller:.2f} times smaller  goal {least} {verdict(smaller >= least)}")
    if "accuracy_drop_points" in facts:
        lost, most = (
            facts["accuracy_drop_points"],
            MOST_TRAINING_DROP_POINTS if is_training else MOST_DROP_POINTS,
        )
        lines.append(
            f"{facts['accuracy_percent']:.2f} % of {facts['images_judged']} right, {lost:.2f} points lost"
            f"  goal {most} {verdict(lost <= most)}"
        )
    return [*lines, *(f"{name}: {facts[name]}" for name in SHOWN if name in facts)]


if __name__ == "__main__":
    main()
