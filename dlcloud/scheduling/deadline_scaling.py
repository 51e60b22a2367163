"""A training with a deadline: from a policy's targets to launches and departures, and what is expected of it.

The controller asks the policy, turns its targets into one request at a time (`follow_targets`), and stores
how likely the deadline holds (`probability_of_deadline`) as an `Outlook` (`outlook.py`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, sqrt

from dlcloud.model.errors import CapacityError
from dlcloud.model.instance import Instance, Market
from dlcloud.planning.plan import Plan
from dlcloud.scheduling.policies.situation import Move, Policy, PoolDecision, PoolKey, PoolState, Situation
from dlcloud.scheduling.scaling import InstanceStage, ScalingDecision, TrainingInstance, choose_coordinator

LEAVING_S = 60.0
"""To terminate a cluster and plan in another Region; the first boot there comes on top. An assumption."""
RETURN_S = 4 * 3600.0
"""A Region that was left may have capacity again after so long. Of 0 to 8 h and never, this cost the least in
the half of the traces on which constants are chosen (docs/evidence.md, "Over Regions")."""
REFUSAL_MEAN_S = 900.0
"""Prior of how long a refusal of on-demand instances lasts. An assumption: AWS publishes no figure, and asks
to "wait a few minutes" (EC2 user guide, "Insufficient instance capacity")."""
PRIOR_REQUESTS = 20
"""The prior of refusals: one of this many requests for on-demand instances."""
SPEED_DEVIATION = 0.03
"""Relative standard deviation that is assumed of the time that is left; a busy network varies so much."""


def pool_of(instance: Instance) -> PoolKey:
    """Return the pool of an instance: of spot its zone and type, of on-demand its type."""
    if instance.market is Market.SPOT:
        return Market.SPOT, spot_pool(instance.zone, instance.instance_type)
    return Market.ON_DEMAND, instance.instance_type


def spot_pool(zone: str, instance_type: str) -> str:
    """Return the name of a spot pool."""
    return f"{zone} {instance_type}"


def follow_targets(
    workers: Sequence[TrainingInstance],
    decision: PoolDecision,
    hope: PoolDecision,
    *,
    askable: Collection[PoolKey],
    is_launching: bool,
) -> ScalingDecision:
    """Decide which instances to request and which workers let leave.

    What a spot pool can give is not known before it is asked. Instances are let go, and on-demand ones are
    launched, by what the policy says of those that there are; spot instances are requested by what it would
    do if every pool gave all. Spot is asked before on-demand, unless the coordinator is missing, and one
    market at a time. A worker that another one replaces leaves once as many train as are targeted.

    Args:
        workers: All that the run has had.
        decision: With spot pools that give nothing more.
        hope: With spot pools that give as many as are of use.
        askable: The pools that may be asked now; the others have refused a moment ago.
        is_launching: True while a request for instances is under way.
    """
    present = Counter(pool_of(worker.member.instance) for worker in workers if worker.stays)
    drain = _choose_leaving(workers, decision.targets)
    reasons = [f"{name} leaves: {decision.reason}" for name in drain]
    order = [(Market.SPOT, hope), (Market.ON_DEMAND, decision)]
    if choose_coordinator(workers) is None:
        order.reverse()
    for market, source in () if is_launching else order:
        missing = {
            key: count - present[key]
            for key, count in source.targets.items()
            if key[0] is market and key in askable and count > present[key]
        }
        if missing:
            count, pools = sum(missing.values()), tuple(sorted(name for _, name in missing))
            reasons.append(f"requesting {count} {market} in {', '.join(pools)}: {source.reason}")
            return ScalingDecision(
                launch=count,
                drain=drain,
                retry_at=None,
                reasons=tuple(reasons),
                market=market,
                pools=pools,
            )
    return ScalingDecision(launch=0, drain=drain, retry_at=None, reasons=tuple(reasons))


def leave_region(
    policy: Policy,
    situation: Situation,
    *,
    home: str,
    elsewhere: Mapping[str, float],
    moves: Mapping[str, Move],
) -> tuple[str, PoolDecision] | None:
    """Ask a policy, once no spot pool of a Region has capacity, about other Regions; None if it stays.

    Args:
        policy: It weighs the move against waiting here.
        situation: That of the Region `home`.
        home: Where the training is.
        elsewhere: What spot costs in each other Region; capacity there is believed in.
        moves: What it takes to train in each: what is left to move of the state, the boots, the steps that
            are taken again.

    Returns:
        The Region to continue in, and the decision with its reason.
    """
    there = [
        PoolState(market=Market.SPOT, name=name, hourly_usd=usd, obtainable=situation.maximum, region=name)
        for name, usd in elsewhere.items()
    ]
    own = [replace(one, region=home) if one.market is Market.SPOT else one for one in situation.pools]
    decision = policy(replace(situation, pools=(*own, *there), region=home, moves=moves))
    return next(((pool.region, decision) for pool in there if decision.targets.get(pool.key)), None)


def limit_plan(plan: Plan, market: Market, names: Collection[str], size: int) -> Plan:
    """Return a plan for instances of one market, in the pools of some names, up to this many in all.

    Raises:
        CapacityError: None of the pools is in the plan.
    """
    kept = []
    for pool in plan.pools:
        places = pool.zones or (pool.zone,)
        zones = tuple(zone for zone in places if spot_pool(zone, pool.instance_type) in names)
        if pool.market is market and (zones or pool.instance_type in names):
            kept.append(replace(pool, zones=zones or pool.zones))
    if not kept:
        raise CapacityError(f"no {market} pool of {plan.name} is left that may be asked")
    return replace(plan, pools=tuple(kept), rounds=(market,), on_demand_base=0, max_count=size)


def _choose_leaving(workers: Sequence[TrainingInstance], targets: Mapping[PoolKey, int]) -> tuple[str, ...]:
    coordinator = choose_coordinator(workers)
    first = None if coordinator is None else coordinator.instance.instance_id
    staying = [worker for worker in workers if worker.stays]
    surplus = _surplus(staying, targets)
    arriving = [w for w in surplus if w.state is InstanceStage.ARRIVING and w.instance_id != first]
    training = [w for w in staying if w.state is InstanceStage.TRAINING]
    at_risk = [w for w in workers if w.state is InstanceStage.AT_RISK]
    size = sum(targets.values())
    replaced = at_risk if len(training) >= size else []
    spare = max(0, len(training) - size)
    leaving = [w for w in surplus if w.state is InstanceStage.TRAINING and w.instance_id != first][:spare]
    return tuple(w.instance_id for w in (*replaced, *arriving, *leaving))


def _surplus(staying: Sequence[TrainingInstance], targets: Mapping[PoolKey, int]) -> list[TrainingInstance]:
    """Return the workers beyond the targets of their pools: on-demand ones first, then the newest."""
    left, surplus = Counter(targets), []
    oldest_first = sorted(staying, key=lambda w: (w.member.instance.launched_at, w.instance_id))
    # A pool keeps those that train before those that arrive.
    for worker in sorted(oldest_first, key=lambda w: w.state is InstanceStage.ARRIVING):
        key = pool_of(worker.member.instance)
        left[key] -= 1
        if left[key] < 0:
            surplus.append(worker)
    surplus.reverse()
    return sorted(surplus, key=lambda w: w.member.instance.market is Market.SPOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandRecord:
    """Requests for on-demand instances so far, and how many of them were refused."""

    requests: int = 0
    refusals: int = 0


def probability_of_deadline(situation: Situation, record: OnDemandRecord) -> float:
    """Estimate the probability that the deadline holds, 0 to 1.

    The policy fills with on-demand instances in time. What is left is that they are refused for longer than
    the slack, and that the workers turn out slower than measured:

        P = (1 - p exp(-slack / m)) Phi((time left / time needed - 1) / s)

    p is the share of refused requests for on-demand instances, with a prior of 1 in PRIOR_REQUESTS; m is
    REFUSAL_MEAN_S, s SPEED_DEVIATION. Time needed is that of the work left with the most workers that are
    allowed, after one restart if on-demand instances are still to be launched; slack is the rest. Where the
    on-demand instances that run finish alone in time, p is 0. An estimate from assumptions, not a guarantee.
    """
    if situation.work_left_s <= 0:
        return 1.0
    if situation.time_left_s <= 0:
        return 0.0
    running = sum(pool.running for pool in situation.pools if pool.market is Market.ON_DEMAND)
    alone_s = situation.work_left_s / situation.scaling.speed(running) if running else float("inf")
    if alone_s <= situation.time_left_s:
        return _normal((situation.time_left_s / alone_s - 1) / SPEED_DEVIATION)
    needed_s = situation.restart_s + situation.least_time_s
    slack_s = max(0.0, situation.time_left_s - needed_s)
    refused = (record.refusals + 1) / (record.requests + PRIOR_REQUESTS)
    in_time = _normal((situation.time_left_s / needed_s - 1) / SPEED_DEVIATION)
    return (1 - refused * exp(-slack_s / REFUSAL_MEAN_S)) * in_time


def _normal(deviations: float) -> float:
    return (1 + erf(deviations / sqrt(2))) / 2
