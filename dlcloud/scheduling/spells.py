"""How long spells last: a heavy-tailed distribution with one parameter, its median, learned as spells end.

The share `m / (m + t)` of the spells lasts longer than `t` (a Lomax distribution with shape 1): half of them
end within the median `m`, and a spell of age `t` has a median rest of `m + t`. The V100 traces of Wu et al.
look so from ten minutes to eight hours, with medians of 10 to 40 minutes.

The median has a prior and is updated by Bayes' rule over a grid; a spell that has not ended counts as one
that is at least so long (censored). Pools have calm and restless times: with each new spell, what was learned
before counts a tenth less.
"""

from math import exp, log

HOUR_S = 3600.0
PRIOR_MEDIAN_S = 0.3 * HOUR_S
PRIOR_FACTOR = 3.0
"""The prior of the median: log-normal around this, a standard deviation is this factor."""
MEMORY = 0.9
"""Source: successive spells of a window of those traces correlate (0.26 with capacity, 0.14 without, of their
logarithms, over 24,000 spells)."""
GRID_S = tuple(180.0 * 2.0**power for power in range(9))
_PRIOR = tuple(-0.5 * (log(median / PRIOR_MEDIAN_S) / log(PRIOR_FACTOR)) ** 2 for median in GRID_S)
_LOGS = tuple(log(median) for median in GRID_S)


class SpellFit:
    """What the spells of one kind, of one pool, say so far."""

    __slots__ = ("_likelihoods",)

    def __init__(self) -> None:
        self._likelihoods = _PRIOR

    def end(self, length_s: float) -> None:
        """Take a spell into account that has ended."""
        self._likelihoods = tuple(
            [
                prior + MEMORY * (so_far - prior) + a_log - 2 * log(median + length_s)
                for so_far, prior, a_log, median in zip(self._likelihoods, _PRIOR, _LOGS, GRID_S, strict=True)
            ]
        )

    def median_s(self, age_s: float = 0.0) -> float:
        """Return the estimated median; `age_s` is the age of a spell that goes on, if there is one."""
        values = self._likelihoods
        if age_s > 0:
            values = tuple(
                [
                    v + a_log - log(median + age_s)
                    for v, a_log, median in zip(values, _LOGS, GRID_S, strict=True)
                ]
            )
        top = max(values)
        weights = [exp(value - top) for value in values]
        return exp(sum([w * a_log for w, a_log in zip(weights, _LOGS, strict=True)]) / sum(weights))
