"""The policy `elastic` beside Uniform Progress and the offline bound, cell by cell.

    python tests/performance/policy_grid.py --traces DIR --pooled DIR [--windows 8] [--refusal 3600]

Cells: 1, 4 and 16 workers, changeovers of 1.8 to 720 s, a slack of 8, 10 and 50 %, boots of 0, 31 and 120 s;
24 h of work. Windows: those of one zone and those of three zones of us-east-1, of the half for reporting
(`policies.py`), generated ones that are on and off, and generated ones with partial capacity. Options narrow
the grid. A cell "LOSES" where `elastic` costs more than 0.5 % above Uniform Progress. Behind the ratio is its
interval of 95 % over the windows.
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import fmean

from common import parser_of
from policies import add_sources, half, in_zones

from dlcloud.app.deadlines import load_windows, scale_counts
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.generate import generate_partial_window, generate_window
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay_all
from dlcloud.scheduling.simulation.traces import Window

WORK_H = 24.0
ZONES = ("us-east-1a", "us-east-1c", "us-east-1d")
TOLERANCE = 1.005
KINDS = ("one zone", "three zones", "on and off", "partial")
POOLED_WORKERS = 16
CHOOSING_SEED = 1000
"""Generated windows for choosing constants begin here; those for reporting are the first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Kind of windows, workers, seconds of a changeover and of a boot, and the slack over the work."""

    kind: str
    workers: int
    changeover_s: float
    slack: float
    boot_s: float

    def __str__(self) -> str:
        return (
            f"{self.kind:11} {self.workers:2} workers, changeover {self.changeover_s:5g} s, "
            f"slack {self.slack:.0%}, boot {self.boot_s:3g} s"
        )

    def job(self, refusal_s: float) -> SimulatedJob:
        """Return the job of the cell, with the prices of Wu et al., "Can't Be Late", NSDI 2024."""
        allowed_s = WORK_H * HOUR_S * (1 + self.slack)
        return SimulatedJob(
            work_s=self.workers * WORK_H * HOUR_S,
            allowed_s=allowed_s,
            on_demand_usd=3.06,
            spot_usd=0.9731,
            maximum=self.workers,
            changeover_s=self.changeover_s,
            boot_s=self.boot_s,
            refusal_s=min(refusal_s, allowed_s / 10),
        )


def sources(options: Namespace, workers: int) -> Iterator[tuple[str, list[Window]]]:
    reporting = options.half == "reporting"
    pools, first = (3 if workers >= POOLED_WORKERS else 1), 0 if reporting else CHOOSING_SEED
    seeds = range(first, first + options.windows)
    for name, folder in (("one zone", options.traces), ("three zones", options.pooled)):
        if folder is not None:
            windows = load_windows(folder, pooled=folder is options.pooled)
            windows = half(windows, folder, reporting=reporting)
            step = max(1, len(windows) // options.windows)
            yield name, scale_counts(in_zones(windows[::step][: options.windows], ZONES), workers)
    on_and_off = [generate_window(seed, hours=60, pools=pools) for seed in seeds]
    yield "on and off", scale_counts(on_and_off, workers)
    yield (
        "partial",
        [generate_partial_window(seed, hours=60, pools=pools, count=workers) for seed in seeds],
    )


def compare(cell: Cell, windows: Sequence[Window], refusal_s: float) -> float:
    """Print one cell; return the cost of `elastic` over that of Uniform Progress."""
    job = cell.job(refusal_s)
    bound = fmean(least_cost_usd(job, window) for window in windows)
    costs, texts = [], []
    for policy in ("uniform-progress", "elastic"):
        outcomes = replay_all(job, windows, POLICIES[policy])
        costs.append([outcome.usd for outcome in outcomes])
        late = sum(outcome.late_s > 0 for outcome in outcomes)
        texts.append(f"{policy} {fmean(costs[-1]) / bound:.3f}" + (f" ({late} LATE)" if late else ""))
    ratio, error = ratio_of_means(costs[1], costs[0])
    verdict = "LOSES" if ratio > TOLERANCE else ""
    print(
        f"{cell}: over the bound {', '.join(texts)}; ratio {ratio:.3f} "
        f"({ratio - 1.96 * error:.3f} to {ratio + 1.96 * error:.3f}) {verdict}",
        flush=True,
    )
    return ratio


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of two means over the same windows, and its standard error.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 11: the jackknife.
    """
    one, other, count = sum(above), sum(below), len(above)
    without = [(one - a) / (other - b) for a, b in zip(above, below, strict=True)] if count > 1 else []
    middle = fmean(without) if without else 0.0
    return one / other, sqrt((count - 1) / count * sum((value - middle) ** 2 for value in without))


def main() -> None:
    parser = parser_of(__doc__)
    add_sources(parser)
    parser.add_argument("--windows", type=int, default=8, help="of each kind")
    parser.add_argument("--refusal", type=float, default=0.0, help="seconds kept for a refusal of on-demand")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 4, 16))
    parser.add_argument("--changeovers", type=float, nargs="+", default=(1.8, 18.0, 72.0, 180.0, 720.0))
    parser.add_argument("--slacks", type=float, nargs="+", default=(0.08, 0.1, 0.5))
    parser.add_argument("--boots", type=float, nargs="+", default=(0.0, 31.0, 120.0))
    options = parser.parse_args()
    begun, ratios = time.process_time(), []
    grid = [options.workers, options.changeovers, options.slacks, options.boots]
    cells = [Cell(*values) for values in product(KINDS, *grid)]
    for workers in options.workers:
        for kind, windows in sources(options, workers):
            here = [cell for cell in cells if (cell.kind, cell.workers) == (kind, workers)]
            ratios += [compare(cell, windows, options.refusal) for cell in here]
    lost = sum(ratio > TOLERANCE for ratio in ratios)
    print(
        f"{len(ratios)} cells, {lost} lose, worst {max(ratios):.3f}, mean {fmean(ratios):.3f}; "
        f"{time.process_time() - begun:.0f} s of one core"
    )


if __name__ == "__main__":
    main()
