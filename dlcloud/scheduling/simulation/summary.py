"""Many replays as one row: means, intervals, missed deadlines, next to the offline bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, stdev

from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome

NORMAL_95 = 1.96
"""Half the width of a 95 % interval of a mean, in standard errors."""
BOUND = "offline bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy over all windows of a job.

    Attributes:
        policy: Its name, or `BOUND`.
        windows: How many were replayed.
        usd: Mean cost.
        cost: Mean cost over that of all on-demand; `low` and `high` are its 95 % interval over the windows.
        over_bound: Mean cost over the mean bound; None where free spot instances could do all of it.
        hours: Mean time to the end, of those that ended.
        interruptions: Mean number of spot instances taken away.
        missed: Windows that ended after the deadline, or never.
        late_h: The most hours after the deadline; infinite for a job that never ended.
        on_demand: Share of the instance-hours that were on-demand.
    """

    policy: str
    windows: int
    usd: float
    cost: float
    low: float
    high: float
    over_bound: float | None
    hours: float | None = None
    interruptions: float | None = None
    missed: int | None = None
    late_h: float | None = None
    on_demand: float | None = None


def bound_row(job: SimulatedJob, bounds: Sequence[float]) -> Row:
    return _row(BOUND, job, bounds, bounds)


def policy_row(
    policy: str, job: SimulatedJob, outcomes: Sequence[SimulatedOutcome], bounds: Sequence[float]
) -> Row:
    """Return the row of a policy; `bounds` are those of the same windows, in USD."""
    row = _row(policy, job, [outcome.usd for outcome in outcomes], bounds)
    finished = [outcome.finished_s for outcome in outcomes if isfinite(outcome.finished_s)]
    billed_s = sum(outcome.spot_s + outcome.on_demand_s for outcome in outcomes)
    return Row(
        policy=row.policy,
        windows=row.windows,
        usd=row.usd,
        cost=row.cost,
        low=row.low,
        high=row.high,
        over_bound=row.over_bound,
        hours=fmean(finished) / HOUR_S if finished else None,
        interruptions=fmean(outcome.interruptions for outcome in outcomes),
        missed=sum(outcome.late_s > 0 for outcome in outcomes),
        late_h=max(outcome.late_s for outcome in outcomes) / HOUR_S,
        on_demand=sum(outcome.on_demand_s for outcome in outcomes) / billed_s if billed_s else 0.0,
    )


def _row(policy: str, job: SimulatedJob, costs: Sequence[float], bounds: Sequence[float]) -> Row:
    ratios = [usd / job.on_demand_cost_usd for usd in costs]
    mean, bound = fmean(ratios), fmean(bounds)
    half = NORMAL_95 * stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return Row(
        policy=policy,
        windows=len(costs),
        usd=fmean(costs),
        cost=mean,
        low=mean - half,
        high=mean + half,
        over_bound=fmean(costs) / bound if bound > 0 else None,
    )
