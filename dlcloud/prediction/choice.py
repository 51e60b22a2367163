"""Choose which types to measure: those that tell most of all others, per USD."""

from collections.abc import Mapping, Sequence
from operator import mul

from dlcloud.prediction.predictor import FREE_LEVEL, Belief

COST_POWER = 0.083
"""How much a price counts: at 1, three small types are chosen, that tell little of large ones."""
MOST_TARGETS = 250
MOST_CANDIDATES = 250


def choose_types(
    belief: Belief, candidates: Mapping[str, float], targets: Sequence[str], count: int = 3
) -> list[str]:
    """Return the types that reduce the summed variance of the targets most, each by its price.

    Args:
        belief: Before any measurement.
        candidates: USD an hour of each type that can be measured.
        targets: The types of which something is to be learned.
        count: How many.
    """
    names = _thin([*_representatives(belief, candidates)], MOST_CANDIDATES)
    goals = _thin(sorted(targets), MOST_TARGETS)
    departures = {name: belief.departures(name) for name in {*names, *goals}}

    def covariance(one: str, other: str) -> float:
        spread: float = sum(map(mul, departures[one], departures[other]))
        return spread + belief.variance * belief.deviation(one, other) + FREE_LEVEL

    shared = {name: [covariance(name, goal) for goal in goals] for name in names}
    among = {name: {other: covariance(name, other) for other in names} for name in names}
    noises = {name: belief.noise(name) for name in names}
    chosen: list[str] = []
    while names and len(chosen) < count:
        gains = {
            name: sum(c * c for c in shared[name])
            / (among[name][name] + noises[name])
            / candidates[name] ** COST_POWER
            for name in names
        }
        best = max(names, key=lambda name: gains[name])
        chosen.append(best)
        names = [name for name in names if name != best]
        own, row = among[best][best] + noises[best], dict(among[best])
        for name in names:
            part = row[name] / own
            shared[name] = [c - part * b for c, b in zip(shared[name], shared[best], strict=True)]
            among[name] = {other: among[name][other] - part * row[other] for other in names}
    return chosen


def _representatives(belief: Belief, candidates: Mapping[str, float]) -> list[str]:
    """Return the cheapest measured type of each processor and size; no burstable one, no metal."""
    best: dict[tuple[str, int], str] = {}
    for name, usd in sorted(candidates.items(), key=lambda pair: pair[1]):
        row = belief.table.rows.get(name)
        if row is None or not row.measured or row.traits.is_burstable or row.traits.is_metal or usd <= 0:
            continue
        best.setdefault((row.traits.processor.design, row.traits.cores), name)
    return sorted(best.values())


def _thin(names: Sequence[str], most: int) -> list[str]:
    step = max(1.0, len(names) / most)
    return [names[int(i * step)] for i in range(min(len(names), most))]
