"""Choose the few types to race: those of which one most probably is the cheapest, or nearly.

The types of least predicted cost are often alike, so that all of them disappoint together. Instead the costs
of many possible worlds are drawn, in which alike types err alike, and each entrant is the type that is near
the cheapest in most of the worlds where none before it is (the greedy choice of a set cover, at least 63 % as
good as the best set). How far a single type departs from those like it is not drawn: it says nothing of which
to race.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p, sqrt
from operator import mul
from random import Random

from dlcloud.prediction.linear import factor, solve_lower, solve_upper
from dlcloud.prediction.predictor import FREE_LEVEL, Belief, condition

DRAWS = 300
NEAR = 0.1
"""An entrant so much dearer than the cheapest will do."""
JITTER = 1e-6


def choose_entrants(
    belief: Belief, hourly_usd: Mapping[str, float], first: Sequence[str], most: int
) -> list[str]:
    """Return the types to race, the most important first; fewer if they are enough in all worlds drawn.

    Args:
        belief: After the measurements.
        hourly_usd: Prices of the types that may race.
        first: Those that race in any case.
        most: How many at most.
    """
    names, chosen = list(hourly_usd), list(first)
    near: dict[str, set[int]] = {name: set() for name in names}
    prices = [log(hourly_usd[name]) for name in names]
    for draw, levels in enumerate(_worlds(belief, names)):
        costs = [price - level for price, level in zip(prices, levels, strict=True)]
        limit = min(costs) + log1p(NEAR)
        for name, cost in zip(names, costs, strict=True):
            if cost <= limit:
                near[name].add(draw)
    left = set(range(DRAWS)).difference(*(near.get(name, set()) for name in chosen))
    while left and len(chosen) < most:
        chosen.append(max(names, key=lambda name: len(near[name] & left)))
        left -= near[chosen[-1]]
    return chosen[:most]


def _worlds(belief: Belief, names: Sequence[str]) -> list[list[float]]:
    """Return logarithms of throughput on these types in each draw, given the measurements."""
    observed, random = belief.observed, Random(0)  # noqa: S311  the same list each time
    logs = [log(one.throughput) for one in belief.measurements]
    every = [*observed, *names]
    lower = factor(
        [
            [belief.deviation(a, b) + JITTER * (i == j) for j, b in enumerate(every)]
            for i, a in enumerate(every)
        ]
    )
    chances = [one.probability for one in belief.resemblances]
    ways: dict[int, _Way] = {}
    worlds = []
    for k in random.choices(range(len(chances)), chances, k=DRAWS):
        way = ways[k] = ways.get(k) or _way(belief, k, every)
        normal = [random.gauss() for _ in every]
        turned = [random.gauss() for _ in way.scatter[0]]
        level = sqrt(FREE_LEVEL) * random.gauss()
        prior = [
            shape + level + way.scale * sum(map(mul, row, normal)) + sum(map(mul, parts, turned))
            for shape, row, parts in zip(way.shapes, lower, way.scatter, strict=True)
        ]
        errors = [
            value - before - noise * random.gauss()
            for value, before, noise in zip(logs, prior, way.noises, strict=False)
        ]
        pulls = solve_upper(way.lower, solve_lower(way.lower, errors))
        rest = zip(prior[len(observed) :], way.shared, strict=True)
        worlds.append([before + sum(map(mul, pulls, shared)) for before, shared in rest])
    return worlds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What the draws of one thing that the job can be need, of observed types and then of the others.

    `lower` and `noises` are of the observed types; `shared` is each other type's covariance with them.
    """

    scale: float
    shapes: list[float]
    scatter: list[list[float]]
    lower: list[list[float]]
    noises: list[float]
    shared: list[list[float]]


def _way(belief: Belief, k: int, every: Sequence[str]) -> _Way:
    one, observed = belief.resemblances[k], belief.observed
    scatter = [belief.scattered(name, one) for name in every]
    return _Way(
        scale=sqrt(one.free_variance),
        shapes=[belief.shapes(name)[k] for name in every],
        scatter=scatter,
        lower=condition(belief, k)[0],
        noises=[sqrt(belief.noise(name, one)) for name in observed],
        shared=[
            [
                one.free_variance * belief.deviation(every[i], other)
                + sum(map(mul, scatter[i], scatter[j]))
                + FREE_LEVEL
                for j, other in enumerate(observed)
            ]
            for i in range(len(observed), len(every))
        ],
    )
