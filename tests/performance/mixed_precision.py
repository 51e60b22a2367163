"""Mixed-precision training beside FP32 on this machine's CPU: the bundled benchmark, run as on an instance.

Prints each network's training time in the best setting as a share of FP32 eager in PyTorch's own layout, with
its interval, beside the goal; then how the digits are learned; with `--only optimizations`, the gain of each.
`--only resnet50 digits` runs a part; six minutes for all but the optimizations on two quiet cores.
"""

import argparse

from bundled import environment, records_of

BEST = "bf16+channels_last+depthwise+heap"
PLAIN_BEST = "bf16+channels_last+heap"
GOALS = {
    "resnet50": (43, 8, PLAIN_BEST),
    "vgg16": (45, 4, PLAIN_BEST),
    "mobilenet": (57, 8, BEST),
    "efficientnet-b0": (70, 8, BEST),
}
"""Most per cent of FP32's time; images a step; the setting."""

OPTIMIZATIONS = {
    "resnet50": ("fp32+channels_last", "fp32+channels_last+heap", "bf16", "bf16+channels_last", PLAIN_BEST,
                 "bf16+channels_last+compile+heap"),
    "mobilenet": ("fp32+channels_last+depthwise+heap", "bf16", "bf16+channels_last",
                  "bf16+channels_last+depthwise", BEST, "bf16+channels_last+compile+depthwise+heap"),
}  # fmt: skip
DIGITS = ("bf16", BEST.replace("+depthwise", ""))
MOST_DROP_POINTS = 0.5


def main() -> None:
    """Build the pinned environment, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--only", nargs="+", choices=(*GOALS, "digits", "optimizations"), default=[*GOALS, "digits"]
    )
    chosen = parser.parse_args().only
    python = environment("mixed_precision")
    for network in (name for name in GOALS if name in chosen):
        goal, batch, setting = GOALS[network]
        records = run(python, "--network", network, "--batch", str(batch), "--setting", setting)
        shares(records, goal)
        kernels(records)
    if "digits" in chosen:
        learning(run(python, "--network", "digits", "--max-seconds", "5", "--setting", *DIGITS))
    for network in OPTIMIZATIONS if "optimizations" in chosen else ():
        shares(run(python, "--network", network, "--batch", "8", "--setting", *OPTIMIZATIONS[network]), None)


def run(python: str, *arguments: str) -> list[dict]:
    common = ["--device", "cpu", "--max-seconds", "50", "--slice-seconds", "2"]
    return records_of(python, "mixed_precision", [*common, *arguments])


def shares(records: list[dict], goal: int | None) -> None:
    """Print how long each setting takes as a share of the baseline's time."""
    for record in (
        record for record in records if record["record"] == "comparison" and record["baseline"] == "fp32"
    ):
        share, low, high = (100 / record[name] for name in ("ratio", "high", "low"))
        beside = f"  goal {goal} %  {'met' if share <= goal else 'MISSED'}" if goal else ""
        print(
            f"{record['case']:<26} {record['candidate']:<42} {share:5.1f} % of FP32's time"
            f" ({low:.1f} to {high:.1f}){beside}",
            flush=True,
        )


def kernels(records: list[dict]) -> None:
    """Print what the proof saw, the memory, and the warnings."""
    for record in (record for record in records if record["record"] == "result"):
        facts, peak = record["facts"], record["metrics"]["peak_memory"]["value"]
        print(
            f"    {record['setting']}: {facts['kernels_in_precision']} of {facts['kernels_in_all']} kernels"
            f" in its precision, such as {next(iter(facts['kernels']), 'none')}; peak {peak:.0f} MiB"
        )
        for warning in record["warnings"]:
            print(f"    warning: {warning}")
    for record in (record for record in records if record["record"] == "skip"):
        print(f"    skipped: {record['setting']}: {record['reason']}")


def learning(records: list[dict]) -> None:
    """Print each setting's loss curve and accuracy, over all 1,797 digits."""
    for record in (record for record in records if record["record"] == "result"):
        facts = record["facts"]
        print(f"{record['case']:<26} {record['setting']:<42} {facts['accuracy_percent']:.2f} % right", end="")
        if "accuracy_drop_points" in facts:
            drop = facts["accuracy_drop_points"]
            verdict = "met" if drop <= MOST_DROP_POINTS else "MISSED"
            print(
                f", drop {drop:+.2f} points (p {facts['p_value_of_equal_accuracy']:.2f}), goal at most"
                f" {MOST_DROP_POINTS}  {verdict}; loss never more than"
                f" {facts['largest_gap_of_the_loss_curves']:.4f} apart",
                end="",
            )
        print("\n    loss by epoch: " + " ".join(f"{loss:.3f}" for loss in facts["loss_curve"]))


if __name__ == "__main__":
    main()
