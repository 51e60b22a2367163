"""How long spells last: heavy tails with one free parameter, the median, which is learned as spells end.

The share `(1 + t/s)^-1.5` of the spells lasts longer than `t` (a Lomax distribution with a shape of 1.5); the
scale `s` is 1.7 times the median. A spell of age `t` ends `1.5 / (s + t)` times an hour: the longer it has
lasted, the longer it is expected to.

The median has a prior and is updated by Bayes' rule over a grid; a spell that has not ended counts as one
that is at least so long (censored). Pools have calm and restless times: with each new spell, what was learned
before counts a fifth less.
"""

from math import exp, log

HOUR_S = 3600.0
PRIOR_MEDIAN_S = 0.3 * HOUR_S
PRIOR_FACTOR = 3.0
"""The prior of the median: log-normal around this, a standard deviation is this factor."""
SHAPE = 1.5
"""Of 24,000 spells of the V100 and K80 traces of Wu et al., those of hours end 1.4 to 2.2 times as often as a
shape of 1 says; 1.3 to 2 cost the same in replays."""
MEMORY = 0.8
"""Source: successive spells of a window of those traces correlate (0.26 with capacity, 0.14 without, of the
logarithms, within a window)."""
SCALE = 1 / (2 ** (1 / SHAPE) - 1)
"""The scale of the distribution over its median."""
GRID_S = tuple(180.0 * 2.0**power for power in range(9))
_PRIOR = tuple(-0.5 * (log(median / PRIOR_MEDIAN_S) / log(PRIOR_FACTOR)) ** 2 for median in GRID_S)
_LOGS = tuple(log(median) for median in GRID_S)
_SCALES = tuple((SCALE * median, log(SCALE * median)) for median in GRID_S)


def ending_rate(median: float, age: float) -> float:
    """Return how often a spell of an age ends, per unit of time of both arguments."""
    return SHAPE / (SCALE * median + age)


class SpellFit:
    """What the spells of one kind, of one pool, say so far."""

    __slots__ = ("_likelihoods",)

    def __init__(self) -> None:
        self._likelihoods = _PRIOR

    def end(self, length_s: float) -> None:
        """Take a spell into account that has ended."""
        self._likelihoods = tuple(
            [
                prior + MEMORY * (so_far - prior) + SHAPE * s_log - (SHAPE + 1) * log(scale + length_s)
                for so_far, prior, (scale, s_log) in zip(self._likelihoods, _PRIOR, _SCALES, strict=True)
            ]
        )

    def median_s(self, age_s: float = 0.0) -> float:
        """Return the estimated median; `age_s` is the age of a spell that goes on, if there is one."""
        values = self._likelihoods
        if age_s > 0:
            values = tuple(
                [
                    v + SHAPE * (s_log - log(scale + age_s))
                    for v, (scale, s_log) in zip(values, _SCALES, strict=True)
                ]
            )
        top = max(values)
        weights = [exp(value - top) for value in values]
        return exp(sum([w * a_log for w, a_log in zip(weights, _LOGS, strict=True)]) / sum(weights))
