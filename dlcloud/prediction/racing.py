"""Race candidates: look after every sample, and stop each as soon as it cannot be the cheapest any more.

Intervals hold at all looks together (confidence sequences), so that looking often costs no error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf, log, sqrt
from statistics import fmean, stdev

INDIFFERENCE = 0.02
"""Candidates whose costs differ by less are the same to the user."""
ERROR = 0.05
FEWEST_SAMPLES = 3
MOST_SAMPLES = 1000
_PRIOR_SAMPLES = 0.03
"""Inverse variance of the effect in the prior: small, because candidates mostly differ by many deviations."""


class Verdict(StrEnum):
    """How a race stands."""

    GOES_ON = "goes on"
    DECIDED = "decided"
    TIED = "tied"
    UNDECIDED = "not worth more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One candidate: its price, what one sample takes, and its throughputs so far."""

    name: str
    hourly_usd: float
    sample_s: float
    throughputs: Sequence[float]

    @property
    def next_usd(self) -> float:
        """What one more sample costs."""
        return self.hourly_usd * self.sample_s / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a race after a look.

    Attributes:
        verdict: Whether it goes on.
        kept: The candidates that can still be the cheapest, the cheapest first.
        stopped: Why each other one cannot.
        reason: Of the verdict.
    """

    verdict: Verdict
    kept: tuple[str, ...]
    stopped: Mapping[str, str]
    reason: str


def half_width(count: int, deviation: float, error: float) -> float:
    """Return the half width of a confidence sequence of a mean, which holds at every count at once.

    Infinite while the samples are too few to say anything.

    Source: the t test with a Gaussian prior of the effect and Haar's of the deviation is a test martingale
    (Lai 1976; Perez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing", 2024); Ville's
    inequality bounds its supremum.
    """
    if count < FEWEST_SAMPLES:
        return inf
    share = _PRIOR_SAMPLES / (count + _PRIOR_SAMPLES)
    ratio = (1 / (error * sqrt(share))) ** (2 / count)
    if share * ratio >= 1:
        return inf
    square = (ratio - 1) / (1 - share * ratio)
    return deviation * sqrt((count - 1) * square / count)


def judge(
    entrants: Sequence[Entrant],
    out: Collection[str] = (),
    job_usd: float | None = None,
    error: float = ERROR,
) -> Standing:
    """Return which candidates can still be the cheapest, and whether the race goes on.

    Args:
        entrants: All that started, those that were stopped included.
        out: Those that an earlier look stopped: they are not measured again, and stay out.
        job_usd: What the user's own work costs on the cheapest; more samples are taken only while the choice
            can save more than they cost. None if not known.
        error: The greatest probability that the cheapest is stopped, over all looks.
    """
    bounds = {one.name: _bounds(one, error / len(entrants)) for one in entrants}
    ceiling = min(high for name, (_, _, high) in bounds.items() if name not in out)
    kept = sorted(
        (n for n, b in bounds.items() if n not in out and b[0] <= ceiling), key=lambda n: bounds[n][1]
    )
    stopped = {
        name: f"at least {max(exp(low - ceiling) - 1, 0.0):.1%} dearer than the cheapest"
        for name, (low, _, _) in bounds.items()
        if name not in kept
    }
    verdict, reason = _verdict(kept, bounds, {one.name: one for one in entrants}, job_usd)
    return Standing(verdict=verdict, kept=tuple(kept), stopped=stopped, reason=reason)


def _verdict(
    kept: Sequence[str],
    bounds: Mapping[str, tuple[float, float, float]],
    entrants: Mapping[str, Entrant],
    job_usd: float | None,
) -> tuple[Verdict, str]:
    if len(kept) == 1:
        return Verdict.DECIDED, f"{kept[0]} is the cheapest"
    lowest = min(bounds[name][0] for name in kept)
    apart = exp(max(bounds[name][2] for name in kept) - lowest) - 1
    if apart <= INDIFFERENCE:
        return Verdict.TIED, f"{', '.join(kept)} differ by less than {INDIFFERENCE:.0%}"
    if all(len(entrants[name].throughputs) >= MOST_SAMPLES for name in kept):
        return Verdict.UNDECIDED, f"{MOST_SAMPLES} samples each do not separate {', '.join(kept)}"
    gain = exp(bounds[kept[0]][2] - lowest) - 1
    round_usd = sum(entrants[name].next_usd for name in kept)
    if job_usd is not None and gain * job_usd < round_usd:
        saved = f"{gain * job_usd:.4f} USD at most can be saved"
        return Verdict.UNDECIDED, f"{saved}, and another sample of each costs {round_usd:.4f} USD"
    return Verdict.GOES_ON, f"{len(kept)} can still be the cheapest"


def _bounds(entrant: Entrant, error: float) -> tuple[float, float, float]:
    """Return the least, mean and greatest logarithm of USD per item."""
    logs = [log(value) for value in entrant.throughputs]
    if len(logs) < FEWEST_SAMPLES:
        return -inf, log(entrant.hourly_usd) - fmean(logs) if logs else inf, inf
    mean = log(entrant.hourly_usd) - fmean(logs)
    half = half_width(len(logs), stdev(logs), error)
    return mean - half, mean, mean + half
