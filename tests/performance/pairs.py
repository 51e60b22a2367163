"""Time whole commands in alternating pairs and print their ratio: a drift affects both."""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

RESAMPLES = 2000


def seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Run a command to its end and return how long it took."""
    started = time.perf_counter()
    subprocess.run(command, env=os.environ | (environment or {}), check=True, capture_output=True)
    return time.perf_counter() - started


def compare(
    name: str, ours: Callable[[], float], floor: Callable[[], float], *, goal: float, pairs: int
) -> float:
    """Time both in turn, print the median ratio with its 95 % interval beside the goal; return it."""
    ours()
    floor()
    timed = []
    for number in range(pairs):
        first, second = (ours, floor) if number % 2 else (floor, ours)
        one, two = first(), second()
        timed.append((one, two) if number % 2 else (two, one))
    ratios = [mine / theirs for mine, theirs in timed]
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    mine = statistics.median(pair[0] for pair in timed)
    theirs = statistics.median(pair[1] for pair in timed)
    print(
        f"{name:<44} {mine * 1e3:8.1f} ms {theirs * 1e3:8.1f} ms"
        f"  {ratio:5.2f} ({low:.2f} to {high:.2f})  goal {goal}  {'met' if ratio <= goal else 'MISSED'}"
    )
    sys.stdout.flush()
    return ratio


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975)]


def heading() -> None:
    """Print the titles of the columns."""
    print(f"{'':<44} {'ours':>11} {'floor':>11}  ratio (95 % interval), medians of alternating pairs")
