"""Races over recorded samples: are dear types stopped, is the cheapest kept, and what is saved.

    python tests/performance/racing.py FOLDER [--replays 10000] [--spread 1] [--part judging]

FOLDER has `llm.csv.gz` of SpareCores/sc-inspector-data. A replay draws a test and 16 of the 40 types on
which it is cheapest. Each type's machine is as fast as its recorded samples, times a factor of its own with
a deviation of 5 %; its samples are drawn from the five recorded ones. The truth is the cost of those
machines. Saved are the USD of all replays beside measuring, in each, all types with as many samples as the
last one had. `--spread 4` multiplies the distances of a type's samples: is the error kept where machines are
noisier than the prior of the spread expects? `--part` replays one half of the families only, split by the
SHA-256 of their names: constants are chosen on the tuning half and judged on the other. A thousand replays
are computed at once in NumPy, by the constants of `dlcloud/prediction/racing.py`; of the first `--check`
each look is compared with `judge` itself.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass, fields
from math import log, log1p
from pathlib import Path
from statistics import fmean

import numpy as np
from common import parser_of, part_of, usd_by_type, verdict
from type_table import read_rows

from dlcloud.prediction import racing

ENTRANTS, DRAWN_FROM, BETWEEN = 16, 40, 0.05
FEWEST_TYPES = 100
AT_ONCE = 1000
HALVINGS = 30
PARTS = {"all": {0, 1}, "tuning": {0}, "judging": {1}}
WAY = np.linspace(0, 1, max(racing._STEPS) + 1)
Types = list[tuple[float, np.ndarray]]
"""Price and logarithms of the samples of each type."""


def read_tests(folder: Path, part: str) -> list[Types]:
    """Return the cheapest types of each test, of the families of a part."""
    prices = usd_by_type()
    tests: dict[tuple[str, ...], list[tuple[float, list[float]]]] = defaultdict(list)
    for row in read_rows(folder, "llm.csv.gz"):
        samples = [float(row[f"tokens_s_{i}"]) for i in range(1, 6) if row[f"tokens_s_{i}"]]
        if row["gpu"] or row["type"] not in prices or len(samples) < 5:
            continue
        if part_of(row["type"].partition(".")[0], 2) in PARTS[part]:
            key = (row["model"], row["prompt_tokens"], row["generated_tokens"])
            tests[key].append((prices[row["type"]], samples))
    kept = [
        sorted(t, key=lambda one: one[0] / fmean(one[1]))
        for t in tests.values()
        if len(t) >= FEWEST_TYPES * len(PARTS[part]) / 2
    ]
    return [[(usd, np.log(samples)) for usd, samples in types[:DRAWN_FROM]] for types in kept]


@dataclass(kw_only=True)
class Replays:
    """Some races at once; arrays are (races, entrants).

    `samples` has the five recorded logarithms of throughput less their mean; `count`, `total` and `squares`
    are of the samples that were taken; `verdicts` are positions in `racing.Verdict`.
    """

    usd: np.ndarray
    truth: np.ndarray
    samples: np.ndarray
    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    alive: np.ndarray
    verdicts: np.ndarray
    looks: np.ndarray
    named: np.ndarray

    @classmethod
    def draw(cls, tests: list[Types], races: int, spread: float, rng: np.random.Generator) -> "Replays":
        shape = (races, ENTRANTS)
        usd, samples = np.empty(shape), np.empty((*shape, 5))
        for race in range(races):
            types = tests[rng.integers(len(tests))]
            for lane, i in enumerate(rng.choice(len(types), ENTRANTS, replace=False)):
                usd[race, lane], samples[race, lane] = types[i]
        center = samples.mean(axis=2)
        return cls(
            usd=usd,
            truth=np.log(usd) - center - rng.normal(0, BETWEEN, shape),
            samples=spread * (samples - center[..., None]),
            count=np.zeros(shape, int),
            total=np.zeros(shape),
            squares=np.zeros(shape),
            alive=np.ones(shape, bool),
            verdicts=np.zeros(races, int),
            looks=np.zeros(races, int),
            named=np.zeros(races, int),
        )

    def take(self, races: np.ndarray, rng: np.random.Generator, seen: list[list[list[float]]]) -> None:
        """Measure all that still run; later looks are rarer: a tenth more samples each."""
        done = self.count[races].max(axis=1)
        more = np.where(done == 0, racing.FEWEST_SAMPLES, np.maximum(1, done // 10))
        more = np.minimum(more, racing.MOST_SAMPLES - done)
        for number in np.unique(more):
            rows = races[more == number]
            drawn = rng.integers(0, 5, (len(rows), ENTRANTS, number))
            values = np.take_along_axis(self.samples[rows], drawn, axis=2)
            runs = self.alive[rows]
            self.count[rows] += number * runs
            self.total[rows] += values.sum(axis=2) * runs
            self.squares[rows] += (values * values).sum(axis=2) * runs
            for row, taken, running in zip(rows, values, runs, strict=True):
                if row < len(seen):
                    for lane in np.flatnonzero(running):
                        seen[row][lane] += taken[lane].tolist()

    def look(self, races: np.ndarray) -> np.ndarray:
        """Stop what `judge` stops, and return the races that go on."""
        alive, count = self.alive[races], self.count[races].astype(float)
        means = self.total[races] / count
        squares = np.maximum(self.squares[races] - count * means * means, 0)
        costs = self.truth[races] - means
        careful = np.where(alive, costs + np.sqrt(squares) / count, np.inf).argmin(axis=1)
        cheapest = np.where(alive, costs, np.inf).argmin(axis=1)
        stopped = np.zeros_like(alive)
        for rival in (cheapest, careful):
            stopped |= alive & are_dearer(costs, count, squares, rival)
        alive &= ~stopped
        self.alive[races] = alive
        self.looks[races] += 1
        self.named[races] = np.where(alive, costs, np.inf).argmin(axis=1)
        verdicts = self._verdicts(alive, costs, count, squares)
        self.verdicts[races] = verdicts
        return races[verdicts == GOES_ON]

    @staticmethod
    def _verdicts(alive, costs, count, squares) -> np.ndarray:
        kept = np.where(alive, costs, np.nan)
        zone = log1p(racing.INDIFFERENCE)
        near = np.flatnonzero(np.nanmax(kept, axis=1) - np.nanmin(kept, axis=1) <= zone)
        half = half_widths(count[near], squares[near])
        widest = np.nanmax(kept[near] + half, axis=1) - np.nanmin(kept[near] - half, axis=1)
        verdicts = np.full(len(alive), GOES_ON)
        verdicts[((count >= racing.MOST_SAMPLES) | ~alive).all(axis=1)] = UNDECIDED
        verdicts[near[widest <= zone]] = TIED
        verdicts[alive.sum(axis=1) == 1] = DECIDED
        return verdicts


GOES_ON, DECIDED, TIED, UNDECIDED = range(len(racing.Verdict))


def log_evidence(count: np.ndarray, square: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return what `racing._log_evidence` returns, of arrays."""
    power = count / 2 + racing._SHAPE
    null, other = [], []
    for weight, scale in racing._SCALES:
        likely = log(weight) + racing._SHAPE * log(scale)
        null.append(likely - power * np.log(2 * scale + squares + count * square))
        for effect in racing._EFFECTS:
            share = effect / (count + effect)
            rest = np.log(2 * scale + squares + share * count * square)
            other.append(likely + np.log(share) / 2 - log(len(racing._EFFECTS)) - power * rest)
    return np.logaddexp.reduce(other) - np.logaddexp.reduce(null)


def are_dearer(costs, count, squares, rival) -> np.ndarray:
    """Return where the evidence that an entrant is dearer than its race's rival is enough."""
    result = np.zeros(costs.shape, bool)
    races, lanes = np.nonzero(costs > np.take_along_axis(costs, rival[:, None], axis=1))
    for way in (WAY[[0, -1]], WAY):  # the ends first, where evidence mostly is least
        own, other = (races, lanes), (races, rival[races])
        low = costs[other][:, None]
        between = low + (costs[own][:, None] - low) * way
        evidence = sum(
            log_evidence(count[x][:, None], (between - costs[x][:, None]) ** 2, squares[x][:, None])
            for x in (own, other)
        )
        enough = (evidence >= log((ENTRANTS - 1) / racing.ERROR)).all(axis=1)
        races, lanes = races[enough], lanes[enough]
    result[races, lanes] = True
    return result


def half_widths(count: np.ndarray, squares: np.ndarray) -> np.ndarray:
    least = log(ENTRANTS / racing.ERROR)
    low, high = np.zeros_like(count), np.full_like(count, racing._WIDEST)
    unknown = log_evidence(count, high**2, squares) < least
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_low = log_evidence(count, middle * middle, squares) < least
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.where(unknown, np.inf, high)


def compare(replays: Replays, race: int, was: np.ndarray, seen: list[list[float]]) -> None:
    """Exit unless `judge` says of a look what was computed here."""
    entrants = [
        racing.Entrant(
            name=str(lane),
            hourly_usd=float(np.exp(replays.truth[race, lane])),
            sample_s=30.0,
            throughputs=np.exp(seen[lane]).tolist(),
        )
        for lane in range(ENTRANTS)
    ]
    standing = racing.judge(entrants, out=[str(lane) for lane in np.flatnonzero(~was)])
    kept = {str(lane) for lane in np.flatnonzero(replays.alive[race])}
    ours = list(racing.Verdict)[replays.verdicts[race]]
    if (set(standing.kept), standing.verdict) != (kept, ours):
        sys.exit(f"race {race}: judge keeps {standing.kept}, {standing.verdict}; here {sorted(kept)}, {ours}")


def replay(tests: list[Types], races: int, spread: float, rng: np.random.Generator, check: int) -> Replays:
    replays = Replays.draw(tests, races, spread, rng)
    seen: list[list[list[float]]] = [[[] for _ in range(ENTRANTS)] for _ in range(min(check, races))]
    running = np.arange(races)
    while len(running):
        was = replays.alive.copy()
        replays.take(running, rng, seen)
        looked, running = running, replays.look(running)
        for race in looked[looked < check]:
            compare(replays, race, was[race], seen[race])
    return replays


def print_figures(replays: Replays) -> None:
    truth, races = replays.truth, np.arange(len(replays.truth))
    is_dear = truth - truth.min(axis=1)[:, None] > log1p(racing.INDIFFERENCE)
    longest = replays.count.max(axis=1)
    for title, errors in (
        ("dear kept", (is_dear & replays.alive).any(axis=1)),
        ("dear named", is_dear[races, replays.named]),
        ("cheapest stopped", ~replays.alive[races, truth.argmin(axis=1)]),
    ):
        share = errors.mean()
        print(f"{title:18} {share:7.2%} (goal: at most 5 %: {verdict(share <= racing.ERROR)})")
    saved = 1 - (replays.usd * replays.count).sum() / (longest * replays.usd.sum(axis=1)).sum()
    print(f"{'USD saved':18} {saved:7.2%} (goal: at least 75 %: {verdict(saved >= 0.75)})")
    ended = (replays.verdicts != GOES_ON).mean()
    tied, limit = ((replays.verdicts == kind).mean() for kind in (TIED, UNDECIDED))
    print(f"{'ended':18} {ended:7.2%} (goal: all: {verdict(ended == 1)})")
    print(f"tied {tied:.1%}, at the limit {limit:.1%}")
    print(f"samples of the last one, mean: {longest.mean():.0f}; looks: {replays.looks.mean():.0f}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--part", choices=list(PARTS), default="all")
    parser.add_argument("--check", type=int, default=20)
    options = parser.parse_args()
    tests, rng = read_tests(options.folder, options.part), np.random.default_rng(1)
    chunks = [
        replay(
            tests, min(AT_ONCE, options.replays - start), options.spread, rng, 0 if start else options.check
        )
        for start in range(0, options.replays, AT_ONCE)
    ]
    arrays = {one.name: np.concatenate([getattr(c, one.name) for c in chunks]) for one in fields(Replays)}
    print(f"{options.replays} replays, {options.part} families; looks equal to judge's in {options.check}")
    print_figures(Replays(**arrays))


if __name__ == "__main__":
    main()
