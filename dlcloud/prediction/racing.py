"""Race candidates: look after every sample, and stop each as soon as it cannot be the cheapest any more.

Evidence against a candidate is a test martingale (an e-process): by Ville's inequality it exceeds 1 / error
with probability `error` at most over all looks together, so that looking often costs no error. It is a
mixture over normal effects of the likelihood ratio of logarithms of throughput, whose unknown variance has an
inverse-gamma prior. The stated error is therefore an average over machines whose spread the prior describes;
`tests/performance/racing.py` counts it on recorded samples.
Source: Robbins, "Statistical methods related to the law of the iterated logarithm" (1970); Ramdas et al.,
"Game-theoretic statistics and safe anytime-valid inference" (2023).

How a race ended is a `RaceResult` of its candidates.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import exp, inf, log, log1p, sqrt
from statistics import fmean

INDIFFERENCE = 0.02
"""Candidates whose costs differ by less are the same to the user."""
ERROR = 0.05
FEWEST_SAMPLES = 2
MOST_SAMPLES = 1000
_EFFECTS = (1e-5, 1e-3, 0.1)
"""Inverse variances of the effect, in variances of a sample: candidates very far, far, and hardly apart."""
_SHAPE, _SCALES = 3.0, ((0.5, 6e-5), (0.3, 6e-4), (0.2, 6e-3))
"""The prior of a sample's variance, inverse gamma: its shape; weights and scales from quiet to noisy work.

Source: about that of the recorded samples, whose standard deviation has a median of 0.75 %, a 95th percentile
of 6.8 % and a 99th of 17 %.
"""
_STEPS = (0, 24, *range(1, 24))
"""Of the way from one mean to the other; the ends first, where evidence mostly is least."""
_HALVINGS = 30
_WIDEST = 64.0


class Verdict(StrEnum):
    """How a race stands."""

    GOES_ON = "undecided"
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
class Stop:
    """Why a candidate cannot be the cheapest: it costs `excess` more than `rival`, at least, as a share."""

    rival: str
    excess: float
    samples: int

    def __str__(self) -> str:
        return f"at least {self.excess:.1%} dearer than {self.rival} after {self.samples} samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a race after a look.

    Attributes:
        verdict: Whether it continues.
        kept: The candidates that can still be the cheapest, the cheapest first.
        stopped: Those that this look stops, and why each cannot be the cheapest.
        reason: Of the verdict.
    """

    verdict: Verdict
    kept: tuple[str, ...]
    stopped: Mapping[str, Stop]
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """The logarithms of USD per item of one candidate, up to a constant: their number, mean and squares.

    `squares` is the sum of squared distances from the mean; `error` is that of the interval.
    """

    count: int
    mean: float
    squares: float
    error: float

    @cached_property
    def half(self) -> float:
        """The half width of an interval that holds the true cost at all looks."""
        return half_width(self.count, self.squares, self.error)

    @property
    def low(self) -> float:
        return self.mean - self.half if self.count else -inf

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def careful(self) -> float:
        """A cost that is hardly exceeded, computed quickly."""
        return self.mean + sqrt(self.squares) / self.count if self.count else inf

    def log_evidence(self, cost: float) -> float:
        """Return the logarithm of the evidence that the true cost is another than this one."""
        return _log_evidence(self.count, (cost - self.mean) ** 2, self.squares)


def judge(
    entrants: Sequence[Entrant],
    out: Collection[str] = (),
    job_usd: float | None = None,
    error: float = ERROR,
    most_samples: int = MOST_SAMPLES,
) -> Standing:
    """Return which candidates can still be the cheapest, and whether the race continues.

    Args:
        entrants: All that started, those that were stopped included; one of them at least still runs.
        out: Those that an earlier look stopped: they are not measured again, and stay out.
        job_usd: What the user's own work costs on the cheapest; more samples are taken only while the choice
            can save more than they cost. None if not known.
        error: The greatest probability that the cheapest is stopped, over all looks.
        most_samples: Of each candidate; then the race ends.
    """
    costs = {one.name: _costs(one, error / len(entrants)) for one in entrants if one.name not in out}
    running = sorted(costs, key=lambda name: costs[name].mean)
    stopped = _stop(running, costs, log(max(len(entrants) - 1, 1) / error))
    kept = [name for name in running if name not in stopped]
    verdict, reason = _verdict(kept, costs, {one.name: one for one in entrants}, job_usd, most_samples)
    return Standing(verdict=verdict, kept=tuple(kept), stopped=stopped, reason=reason)


def half_width(count: int, squares: float, error: float) -> float:
    """Return the half width of an interval that holds the mean at every look, with probability 1 - `error`.

    Args:
        count: The samples so far.
        squares: The sum of their squared distances from their mean.
        error: Of all looks together.
    """
    least = log(1 / error)
    if count < FEWEST_SAMPLES or _log_evidence(count, _WIDEST**2, squares) < least:
        return inf
    low, high = 0.0, _WIDEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_evidence(count, middle * middle, squares) < least:
            low = middle
        else:
            high = middle
    return high


def _log_evidence(count: int, square: float, squares: float) -> float:
    """Return the logarithm of the evidence against a mean at a squared distance from that of the samples."""
    power = count / 2 + _SHAPE
    null, other = [], []
    for weight, scale in _SCALES:
        likely = log(weight) + _SHAPE * log(scale)
        null.append(likely - power * log(2 * scale + squares + count * square))
        for effect in _EFFECTS:
            share = effect / (count + effect)
            rest = log(2 * scale + squares + share * count * square)
            other.append(likely + log(share) / 2 - log(len(_EFFECTS)) - power * rest)
    return _log_sum(other) - _log_sum(null)


def _log_sum(terms: Sequence[float]) -> float:
    most = max(terms)
    return most + log(sum(exp(term - most) for term in terms))


def _stop(running: Sequence[str], costs: Mapping[str, _Costs], least: float) -> dict[str, Stop]:
    """Return the candidates that are dearer than one of the two best, with the reasons.

    The cheapest candidate is stopped wrongly only if the evidence for another one errs: those are one less
    than all.
    """
    best = {running[0], min(running, key=lambda name: costs[name].careful)}
    stopped = {}
    for name in running:
        rivals = [rival for rival in best if _is_dearer(costs[name], costs[rival], least)]
        if rivals:
            more, rival = max((_least_excess(costs[name], costs[one], least), one) for one in rivals)
            stopped[name] = Stop(rival=rival, excess=exp(more) - 1, samples=costs[name].count)
    return stopped


def _is_dearer(one: _Costs, other: _Costs, least: float, by: float = 0.0) -> bool:
    """True if the logarithm of the evidence that one is dearer, by a factor of exp(`by`), is enough.

    Candidates are measured independently, so that their evidence against any costs in the wrong order is a
    product; it must suffice against all such costs, and is least for some that lie between the means.
    """
    apart = one.mean - by - other.mean
    if apart <= 0 or min(one.count, other.count) < FEWEST_SAMPLES:
        return False
    between = (other.mean + apart * step / max(_STEPS) for step in _STEPS)
    return all(one.log_evidence(cost + by) + other.log_evidence(cost) >= least for cost in between)


def _least_excess(one: _Costs, other: _Costs, least: float) -> float:
    """Return the greatest logarithm of a factor by which one is certainly dearer than the other."""
    low, high = 0.0, one.mean - other.mean
    for _ in range(_HALVINGS // 2):
        middle = (low + high) / 2
        if _is_dearer(one, other, least, middle):
            low = middle
        else:
            high = middle
    return low


def _verdict(
    kept: Sequence[str],
    costs: Mapping[str, _Costs],
    entrants: Mapping[str, Entrant],
    job_usd: float | None,
    most_samples: int,
) -> tuple[Verdict, str]:
    if len(kept) == 1:
        return Verdict.DECIDED, f"{kept[0]} is the cheapest"
    goes_on = f"{len(kept)} can still be the cheapest"
    if _widest(kept, costs) <= log1p(INDIFFERENCE):
        return Verdict.TIED, f"{', '.join(kept)} differ by less than {INDIFFERENCE:.0%}"
    if all(len(entrants[name].throughputs) >= most_samples for name in kept):
        return Verdict.UNDECIDED, f"{most_samples} samples each do not separate {', '.join(kept)}"
    if job_usd is None:
        return Verdict.GOES_ON, goes_on
    gain = exp(costs[kept[0]].high - min(costs[name].low for name in kept)) - 1
    round_usd = sum(entrants[name].next_usd for name in kept)
    if gain * job_usd < round_usd:
        saved = f"{gain * job_usd:.4f} USD at most can be saved"
        return Verdict.UNDECIDED, f"{saved}, and another sample of each costs {round_usd:.4f} USD"
    return Verdict.GOES_ON, goes_on


def _widest(kept: Sequence[str], costs: Mapping[str, _Costs]) -> float:
    """Return how far apart the true costs can be, as a logarithm; not less where the means are further."""
    means = [costs[name].mean for name in kept]
    if max(means) - min(means) > log1p(INDIFFERENCE):
        return inf
    return max(costs[name].high for name in kept) - min(costs[name].low for name in kept)


def _costs(entrant: Entrant, error: float) -> _Costs:
    logs = [log(value) for value in entrant.throughputs]
    if not logs:
        return _Costs(count=0, mean=inf, squares=0.0, error=error)
    center = fmean(logs)
    squares = sum((value - center) ** 2 for value in logs)
    mean = log(entrant.hourly_usd) - center
    return _Costs(count=len(logs), mean=mean, squares=squares, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceCandidate:
    """A setting on an instance type.

    Attributes:
        label: Its name in the race.
        instance_type: Where it ran.
        setting: Which of the job's; empty if none reported yet.
        hourly_usd: Of all instances of the type.
        throughputs: Items per second, a sample each.
        stopped: Why it cannot be the cheapest; None if it can.
    """

    label: str
    instance_type: str
    setting: str
    hourly_usd: float
    throughputs: Sequence[float]
    stopped: Stop | None

    @property
    def throughput(self) -> float | None:
        """The geometric mean of the samples, which the race compares."""
        return exp(fmean(map(log, self.throughputs))) if self.throughputs else None

    def usd_per_million(self, error: float) -> tuple[float | None, float, float | None]:
        """Return USD per million items and an interval that holds at every look; None where unknown.

        Raises:
            ValueError: There are no samples.
        """
        rate = self.throughput
        if rate is None:
            raise ValueError(f"{self.label} has no samples")
        logs = [log(value) for value in self.throughputs]
        middle, center = self.hourly_usd * 1e6 / 3600 / rate, fmean(logs)
        half = half_width(len(logs), sum((value - center) ** 2 for value in logs), error)
        return (None, middle, None) if half == inf else (middle * exp(-half), middle, middle * exp(half))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """A race that has ended.

    Attributes:
        unit: Of throughput.
        lanes: Of the types that did not leave.
        kept: The labels of the lanes that can be the cheapest, the cheapest first.
        verdict: How it ended.
        reason: Of the verdict.
        left: The types that were not measured to the end, and why.
    """

    unit: str
    lanes: Sequence[RaceCandidate]
    kept: Sequence[str]
    verdict: Verdict
    reason: str
    left: Mapping[str, str]

    @property
    def error(self) -> float:
        """The probability that one lane's interval misses: all together miss with `ERROR` at most."""
        return ERROR / max(1, len(self.lanes))
