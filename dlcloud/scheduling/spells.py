"""How long spells with and without spot capacity last, learned as they end.

A spell ends the less often, the older it is. How often an hour, by its age, is the same for all pools (`ON`,
`OFF`) except for a factor, which a pool shows as its spells end: the proportional hazards of survival
analysis, with a gamma prior of the factor (a frailty). A spell that has not ended counts as one that is at
least so old (censored).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import mul

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """How often an hour a spell ends, by its age; `hourly` has one more value than there are edges.

    The prior of a pool's factor is 1, and counts as much as `prior_spells` spells: factors of spells with
    capacity differ more from pool to pool (a standard deviation of 0.65 of their logarithms, and 0.48).

    Source: maximum likelihood over 68 stretches of 78 to 87 h of 17 pools of Wu et al.'s recordings
    (skypilot-org/spot-traces, October 2022 and February 2023), with a factor for each stretch; of each
    recording the half on which constants are chosen (docs/deadlines.md).
    """

    edges_h: tuple[float, ...]
    hourly: tuple[float, ...]
    prior_spells: float = 1.0

    def age_class(self, age_h: float) -> int:
        return bisect_right(self.edges_h, age_h)

    def expected_ends(self, age_h: float) -> float:
        """Return how many ends are expected until an age, of a pool with the factor 1."""
        place = bisect_left(self.edges_h, age_h)
        if not place:
            return self.hourly[0] * max(0.0, age_h)
        return self._until_edges[place - 1] + self.hourly[place] * (age_h - self.edges_h[place - 1])

    @cached_property
    def _until_edges(self) -> Sequence[float]:
        """The ends that are expected until each edge."""
        lengths = (end - begin for begin, end in pairwise((0.0, *self.edges_h)))
        return tuple(accumulate(map(mul, self.hourly, lengths)))

    def ageing(self) -> Sequence[float]:
        """Return how often an hour a spell gets into the next class of age, by class."""
        begins = (0.0, *self.edges_h)
        return [*(1 / (end - begin) for begin, end in zip(begins, self.edges_h, strict=False)), 0.0]


ON = Hazard(edges_h=(1 / 6, 1 / 2, 3 / 2, 6.0), hourly=(1.1, 1.0, 0.65, 0.3, 0.17), prior_spells=0.5)
OFF = Hazard(edges_h=(1 / 2, 2.0), hourly=(1.3, 0.5, 0.25), prior_spells=4.0)


class SpellFit:
    """What the spells of one kind, of one pool, say so far."""

    __slots__ = ("_ends", "_expected", "_hazard")

    def __init__(self, hazard: Hazard) -> None:
        self._hazard = hazard
        self._ends = self._expected = 0.0

    def end(self, length_s: float) -> None:
        """Take a spell into account that has ended."""
        self._ends += 1.0
        self._expected += self._hazard.expected_ends(length_s / HOUR_S)

    def factor(self, age_s: float = 0.0) -> float:
        """Return how many times as often as usual they end; `age_s`: of a spell that has not ended."""
        expected = self._expected + (self._hazard.expected_ends(age_s / HOUR_S) if age_s > 0 else 0.0)
        prior = self._hazard.prior_spells
        return (prior + self._ends) / (prior + expected)
