"""TensorFlow's best setting beside stock on this machine: searched by the bundled benchmark's own search.

Prints the speed-up of the best setting, with its interval from fresh processes, beside the goals: 3.4 times
on ResNet-50 at batch 32, 3.6 times on VGG16 at batch 8 (a CPU with AVX512_BF16), and each setting's gain. The
search turns every knob of the machine in turn: oneDNN, bf16 by rewrite and by policy, allocator,
hyper-threads, threads within and beside operations, layout, XLA; those that earn most come first, and it says
for which the time was up. Seven to eight minutes on two quiet cores, also with `--only resnet50` or `--only
vgg16`, where the search has all the time and turns more; `--search-seconds` gives it any other time.

Stock takes seven seconds a step of ResNet-50 at batch 32, so the search runs at batch 16, as `--search-batch`
does; the figures are measured at the goal's batch. `--quick` trains a tiny network instead, to try every line
of this program in a few minutes; it says nothing of the goals.
"""

import argparse
import time
from dataclasses import dataclass

from bundled import environment, records_of

# Enough for effects this large: six rounds are the fewest that can name a winner.
SHORT = ["--rounds", "6", "--max-seconds", "60", "--warm-up-seconds", "15", "--width", "0.1"]
SHORT += ["--search-rounds", "2", "--search-seconds", "5"]
SEARCHED_BATCH = 16
TO_SEARCH_BOTH_S, TO_SEARCH_ONE_S = 80, 220
"""After so long the search of a network turns no further knob; oneDNN and bf16 take it 130 s at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    network: str
    batch: int
    ratio: float


GOALS = (Goal(network="resnet50", batch=32, ratio=3.4), Goal(network="vgg16", batch=8, ratio=3.6))

QUICK = Goal(network="tiny", batch=32, ratio=0.0)


def main() -> None:
    """Build the pinned environment, search and measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[goal.network for goal in GOALS], help="one of the networks")
    parser.add_argument("--search-seconds", type=float, help="after which a search turns no further knob")
    parser.add_argument("--batch", type=int, help="another batch than the goal's, for a quick look")
    parser.add_argument("--quick", action="store_true", help="a tiny network, to try this program")
    parser.add_argument("--article", action="store_true", help="measure the article's settings, too")
    asked = parser.parse_args()
    python = environment("tensorflow")
    for goal in (QUICK,) if asked.quick else GOALS:
        if asked.only in (None, goal.network) or asked.quick:
            began = time.monotonic()
            records = measured(python, goal, asked)
            report(goal, records, asked.batch or goal.batch, time.monotonic() - began)


def measured(python: str, goal: Goal, asked: argparse.Namespace) -> list[dict]:
    """Run the benchmark and return its records."""
    settings = ["stock", "article", "today"] if asked.article else ["stock", "today"]
    search_s = asked.search_seconds or (TO_SEARCH_ONE_S if asked.only or asked.quick else TO_SEARCH_BOTH_S)
    search = ["--search-total-seconds", str(search_s)]
    batch = asked.batch or goal.batch
    arguments = ["--network", goal.network, "--batch", str(batch), "--settings", *settings]
    arguments += ["--search-batch", str(min(batch, SEARCHED_BATCH))]
    return records_of(python, "tensorflow_cpu", [*arguments, *search, *SHORT])


def report(goal: Goal, records: list[dict], batch: int, seconds: float) -> None:
    """Print the best setting, the speed of each, and the settings left out."""
    case = f"{goal.network} batch {batch}"
    results = {
        record["setting"]: record
        for record in records
        if record["record"] == "result" and record["case"].startswith(case)
    }
    for record in records:
        if record["record"] == "comparison" and " search " not in record["case"]:
            facts = results[record["candidate"]]["facts"]
            interval = f"{record['ratio']:.2f} ({record['low']:.2f} to {record['high']:.2f})"
            rates = [
                results[name]["metrics"]["throughput"]["value"] for name in ("stock", record["candidate"])
            ]
            print(f"{case}: {record['candidate']} {interval} times as fast as stock{verdict(goal, record)}")
            print(f"  {rates[1]:.2f} against {rates[0]:.2f} images/s")
            print(f"  setting: {facts['knobs']}; kernels: {facts['computed_in']}: {facts['kernels']}")
            print(f"  earned in the search: {facts.get('earned', 'nothing was searched')}")
            print(f"  loss in {facts['loss_steps']} steps: {fall(facts, '')}")
            print(f"  stock's: {fall(facts, 'baseline_')}")
            print(f"  falls likewise: {facts['loss_falls_likewise']}")
    warned = {warning for record in results.values() for warning in record["warnings"]}
    left_out = [
        f"{record['setting']}: {record['reason']}" for record in records if record["record"] == "skip"
    ]
    failed = [
        f"{record['setting']}: {record['message']}" for record in records if record["record"] == "failure"
    ]
    for title, lines in (("warning", sorted(warned)), ("left out", left_out), ("FAILED", failed)):
        for line in lines:
            print(f"  {title}: {line}")
    print(f"  {seconds:.0f} s", flush=True)


def fall(facts: dict, whose: str) -> str:
    """Return the first and the last loss of a setting."""
    return f"{facts[whose + 'loss_first']} to {facts[whose + 'loss_last']}"


def verdict(goal: Goal, comparison: dict) -> str:
    """Return the goal and whether it is met; nothing where there is none."""
    if comparison["candidate"] != "today" or goal is QUICK:
        return ""
    return f", goal {goal.ratio} {'met' if comparison['ratio'] >= goal.ratio else 'MISSED'}"


if __name__ == "__main__":
    main()
