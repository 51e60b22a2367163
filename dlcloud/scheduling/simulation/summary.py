"""Many replays as one row: of a policy, with the offline bound, and of a deadline with a choice of pools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from statistics import fmean, stdev

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import HOUR_S, Policy, PoolDecision, Situation
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome, replay
from dlcloud.scheduling.simulation.traces import Window

NORMAL_95 = 1.96
"""Half the width of a 95 % interval of a mean, in standard errors."""
BOUND = "offline bound"
SPREAD = 0.1
"""The spread of a cost leaves out this share of the windows at either end."""
MOST_SINGLE = 12
"""More pools are not compared one by one."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineCost:
    """One deadline with one choice of pools.

    Attributes:
        hours: From the start to the deadline.
        pools: The choice.
        windows: Replayed.
        usd: Mean cost; `low_usd` and `high_usd` leave out a tenth of the windows at either end.
        on_demand_usd: All on-demand from the start.
        finished_h: Mean time to the end.
        missed: Windows that ended after the deadline.
    """

    hours: float
    pools: str
    windows: int
    usd: float
    low_usd: float
    high_usd: float
    on_demand_usd: float
    finished_h: float
    missed: int

    @property
    def over_on_demand(self) -> float:
        return self.usd / self.on_demand_usd


def keep_base(policy: Policy, base: int) -> Policy:
    """Return a policy that never leaves the on-demand instances that coordinate a training."""

    def kept(situation: Situation) -> PoolDecision:
        pools, left = [], base
        for pool in situation.pools:
            keep = left if pool.market is Market.ON_DEMAND else 0
            left -= keep
            pools.append(replace(pool, keep=keep))
        return policy(replace(situation, pools=tuple(pools)))

    return kept


def choose_pools(windows: Sequence[Window]) -> dict[str, list[Window]]:
    """Return the windows by choice of pools: all of them, and each alone if there are some, but not many."""
    names = list(dict.fromkeys(pool.name for window in windows for pool in window.pools))
    if max(len(window.pools) for window in windows) < 2:  # noqa: PLR2004  there is no choice
        return {names[0] if len(names) == 1 else "one pool": list(windows)}
    choices = {f"all {len(names)} pools": list(windows)}
    for name in names if len(names) <= MOST_SINGLE else ():
        alone = [replace(w, pools=tuple(p for p in w.pools if p.name == name)) for w in windows]
        choices[name] = [window for window in alone if window.pools]
    return choices


def cost_of_deadlines(
    job: SimulatedJob, hours: Sequence[float], choices: Mapping[str, Sequence[Window]], policy: Policy
) -> list[DeadlineCost]:
    """Replay a job with each deadline over each choice; at most a tenth of the time is kept for refusals."""
    return [
        _cost(
            replace(job, allowed_s=h * HOUR_S, refusal_s=min(job.refusal_s, h * HOUR_S / 10)),
            name,
            windows,
            policy,
        )
        for h in hours
        for name, windows in choices.items()
    ]


def _cost(job: SimulatedJob, name: str, windows: Sequence[Window], policy: Policy) -> DeadlineCost:
    outcomes = [replay(job, window, policy) for window in windows]
    costs = sorted(outcome.usd for outcome in outcomes)
    cut = int(len(costs) * SPREAD)
    finished = [outcome.finished_s for outcome in outcomes if isfinite(outcome.finished_s)]
    return DeadlineCost(
        hours=job.allowed_s / HOUR_S,
        pools=name,
        windows=len(costs),
        usd=fmean(costs),
        low_usd=costs[cut],
        high_usd=costs[-1 - cut],
        on_demand_usd=job.on_demand_cost_usd,
        finished_h=fmean(finished) / HOUR_S if finished else float("inf"),
        missed=sum(outcome.late_s > 0 for outcome in outcomes),
    )
