"""Races over recorded samples: are dear types stopped, is the cheapest kept, and what is saved.

    python tests/performance/racing.py FOLDER [--replays 10000] [--spread 1] [--part judging] [--seed 1]

FOLDER has `llm.csv.gz` of SpareCores/sc-inspector-data. A replay draws a test and 16 of the 40 types on
which it is cheapest. Each type's machine is as fast as its recorded samples, times a factor of its own with
a deviation of 5 %; its samples are drawn from the five recorded ones. The truth is the cost of those
machines. Saved are the USD of all replays beside measuring, in each, all types with as many samples as the
last one had. `--spread 4` multiplies the distances of a type's samples: is the error kept where machines are
noisier than the prior of the spread expects? `--part` replays one half of the families only, split by the
SHA-256 of their names: constants are chosen on the tuning half and judged on the other.
"""

import argparse
import csv
import gzip
import hashlib
import random
import sys
from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.prediction.racing import (  # noqa: E402  the path comes first
    FEWEST_SAMPLES,
    INDIFFERENCE,
    MOST_SAMPLES,
    Entrant,
    Verdict,
    judge,
)

ENTRANTS, DRAWN_FROM, BETWEEN = 16, 40, 0.05
FEWEST_TYPES = 100
PARTS = {"all": {0, 1}, "tuning": {0}, "judging": {1}}


def half_of(family: str) -> int:
    return int(hashlib.sha256(family.encode()).hexdigest(), 16) % 2


def read_tests(folder: Path, part: str) -> list[list[tuple[float, list[float]]]]:
    """Return price and samples of the cheapest types of each test, of the families of a part."""
    with (ROOT / "dlcloud" / "cloud" / "offers" / "on_demand.csv").open() as file:
        prices = {row["instance_type"]: float(row["usd_hr_us_east_1"]) for row in csv.DictReader(file)}
    tests: dict[tuple[str, ...], list[tuple[float, list[float]]]] = defaultdict(list)
    with gzip.open(folder / "llm.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            samples = [float(row[f"tokens_s_{i}"]) for i in range(1, 6) if row[f"tokens_s_{i}"]]
            if row["gpu"] or row["type"] not in prices or len(samples) < 5:
                continue
            if half_of(row["type"].partition(".")[0]) not in PARTS[part]:
                continue
            key = (row["model"], row["prompt_tokens"], row["generated_tokens"])
            tests[key].append((prices[row["type"]], samples))
    kept = [
        sorted(t, key=lambda one: one[0] / fmean(one[1]))
        for t in tests.values()
        if len(t) >= FEWEST_TYPES * len(PARTS[part]) / 2
    ]
    return [types[:DRAWN_FROM] for types in kept]


def scatter(samples: list[float], spread: float, factor: float) -> list[float]:
    """Return samples with `spread` times their distances from their mean, all times a factor."""
    center = fmean(map(log, samples))
    return [exp(center + spread * (log(value) - center)) * factor for value in samples]


def replay(types: list[tuple[float, list[float]]], rng: random.Random, spread: float) -> dict[str, float]:
    machines = {}
    for i, (price, samples) in enumerate(rng.sample(types, ENTRANTS)):
        factor = exp(rng.gauss(0, BETWEEN))
        machines[str(i)] = (price, scatter(samples, spread, factor))
    truth = {name: log(price) - fmean(map(log, samples)) for name, (price, samples) in machines.items()}
    taken: dict[str, list[float]] = {name: [] for name in machines}
    alive, looks = list(machines), 0
    standing = None
    while standing is None or standing.verdict is Verdict.GOES_ON:
        # Later looks are rarer: a tenth more samples each.
        count = FEWEST_SAMPLES if standing is None else max(1, len(taken[alive[0]]) // 10)
        for name in alive:
            taken[name] += rng.choices(machines[name][1], k=min(count, MOST_SAMPLES - len(taken[name])))
        entrants = [
            Entrant(name=name, hourly_usd=machines[name][0], sample_s=30.0, throughputs=taken[name])
            for name in machines
        ]
        standing = judge(entrants, out=[name for name in machines if name not in alive])
        alive = [name for name in alive if name in standing.kept]
        looks += 1
    best = min(truth.values())
    longest = max(map(len, taken.values()))
    spent = sum(machines[name][0] * len(samples) for name, samples in taken.items())
    dear = [name for name in standing.kept if truth[name] - best > log(1 + INDIFFERENCE)]
    return {
        "dear kept": bool(dear),
        "dear named": truth[standing.kept[0]] - best > log(1 + INDIFFERENCE),
        "cheapest stopped": min(truth, key=lambda name: truth[name]) not in standing.kept,
        "spent": spent,
        "whole": longest * sum(price for price, _ in machines.values()),
        "tied": standing.verdict is Verdict.TIED,
        "undecided": standing.verdict is Verdict.UNDECIDED,
        "samples": longest,
        "looks": looks,
    }


def verdict(is_met: object) -> str:
    return "met" if is_met else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--part", choices=list(PARTS), default="all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tests, rng = read_tests(options.folder, options.part), random.Random(options.seed)
    results = [replay(rng.choice(tests), rng, options.spread) for _ in range(options.replays)]
    mean = {key: fmean(float(result[key]) for result in results) for key in results[0]}
    mean["saved"] = 1 - mean["spent"] / mean["whole"]
    for key, goal in (("dear kept", 0.05), ("dear named", 0.05), ("cheapest stopped", 0.05)):
        print(f"{key:18} {mean[key]:7.2%} (goal: at most {goal:.0%}: {verdict(mean[key] <= goal)})")
    print(f"{'USD saved':18} {mean['saved']:7.2%} (goal: at least 75 %: {verdict(mean['saved'] >= 0.75)})")
    print(
        f"{'ended':18} {len(results) / options.replays:7.2%} (goal: all);"
        f" tied {mean['tied']:.1%}, at the limit {mean['undecided']:.1%}"
    )
    print(f"samples of the last one, mean: {mean['samples']:.0f}; looks: {mean['looks']:.0f}")


if __name__ == "__main__":
    main()
