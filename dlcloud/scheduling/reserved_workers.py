"""Which workers of an elastic run leave a reservation, and when reserved capacity replaces paid instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dlcloud.model.instance import Market
from dlcloud.planning.reservations import BLOCK_MARGIN, CapacityReservation, without_ending
from dlcloud.scheduling.scaling import (
    InstanceStage,
    LaunchRefusals,
    ScalingDecision,
    TrainingInstance,
    choose_coordinator,
    decide,
)

LAST_CALL = timedelta(minutes=2)
"""So long before EC2 terminates the instances of a Capacity Block its workers leave, replaced or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedState:
    """What the reservations of a run say about its workers.

    Attributes:
        idle: Instances that may be launched into them now.
        give_back: How many of the run's own their other users need.
        ending: Why workers are replaced and then leave, by instance id: their Capacity Block ends.
        overdue: The ids of those that leave immediately.
    """

    idle: int = 0
    give_back: int = 0
    ending: Mapping[str, str] = field(default_factory=dict)
    overdue: frozenset[str] = frozenset()


NO_RESERVED = ReservedState()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingInputs:
    """The inputs of `scaling.decide` except the workers."""

    target: int
    now: datetime
    base: int
    rounds: Sequence[Market]
    is_launching: bool
    refusals: LaunchRefusals | None


def assess_reserved(
    workers: Sequence[TrainingInstance],
    chosen: Sequence[CapacityReservation],
    *,
    keep_free: int,
    now: datetime,
    returning: int = 0,
) -> ReservedState:
    """Return what the run's reservations say about its workers.

    EC2 says to no user that the launch of another one was refused: `keep_free` says how many instances the
    other users find idle, and while there are fewer, the run gives its own back.

    Args:
        workers: All that the run has had.
        chosen: The recipe's reservations, as EC2 lists them.
        keep_free: This many instances stay idle.
        now: The time.
        returning: Instances of the run that are on their way back, and that EC2 still counts.
    """
    usable = without_ending(chosen, now, BLOCK_MARGIN)
    idle = sum(one.available for one in usable)
    ends = {one.reservation_id: end for one in chosen if (end := one.terminates_at) is not None}
    ending, overdue = {}, set()
    for worker in workers:
        name = worker.member.instance.reservation_id
        if name in ends and worker.stays and now >= ends[name] - BLOCK_MARGIN:
            ending[worker.instance_id] = f"EC2 ends the instances of {name} from {ends[name]:%H:%M} UTC on"
            if now >= ends[name] - LAST_CALL:
                overdue.add(worker.instance_id)
    return ReservedState(
        idle=max(0, idle - keep_free),
        give_back=max(0, keep_free - idle - returning) if chosen else 0,
        ending=ending,
        overdue=frozenset(overdue),
    )


def decide_with_reserved(
    workers: Sequence[TrainingInstance], inputs: ScalingInputs, reserved: ReservedState
) -> ScalingDecision:
    """Decide as `scaling.decide`, with reservations.

    What their other users need leaves immediately, and is replaced from the markets. Workers of a Capacity
    Block that ends are replaced first, and so are the coordinator and the last worker that holds the state in
    either case. Idle reserved instances complete the run whatever the markets refuse, then replace instances
    that are paid for, which leave when the new ones train.
    """
    leaving, replaced = _choose_returned(workers, reserved)
    states = dict.fromkeys(leaving, InstanceStage.LEAVING) | dict.fromkeys(replaced, InstanceStage.AT_RISK)
    assumed = [replace(worker, state=states.get(worker.instance_id, worker.state)) for worker in workers]
    decision = decide(
        assumed,
        target=inputs.target,
        now=inputs.now,
        base=inputs.base,
        rounds=inputs.rounds,
        is_launching=inputs.is_launching,
        refusals=inputs.refusals,
    )
    causes = {**replaced, **leaving}
    drain = tuple(dict.fromkeys((*leaving, *decision.drain)))
    reasons = tuple(f"{name} leaves: {causes[name]}" for name in drain if name in causes)
    is_led_by_other = choose_coordinator(assumed) is None and choose_coordinator(workers) is not None
    decision = replace(
        decision,
        drain=drain,
        causes=causes,
        reasons=(*reasons, *decision.reasons),
        on_demand_only=bool(decision.launch) and is_led_by_other,
    )
    return decision if decision.launch else _take_idle(assumed, inputs, reserved, decision)


def _choose_returned(
    workers: Sequence[TrainingInstance], reserved: ReservedState
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the workers that leave immediately, and those that are replaced first, each with the reason."""
    first = choose_coordinator(workers)
    own = [worker for worker in workers if worker.stays and worker.member.instance.reservation_id]
    # The newest leave first, the coordinator last.
    own.sort(key=lambda worker: (worker.member.instance.launched_at, worker.instance_id), reverse=True)
    order = sorted(own, key=lambda worker: worker.member is first)
    spared = [worker for worker in order if worker.instance_id not in reserved.ending]
    leaving = {
        worker.instance_id: f"another user needs an instance of {worker.member.instance.reservation_id}"
        for worker in spared[: reserved.give_back]
    }
    leaving |= {name: reserved.ending[name] for name in reserved.overdue}
    replaced = {name: cause for name, cause in reserved.ending.items() if name not in leaving}
    holders = [w.instance_id for w in workers if w.state is InstanceStage.TRAINING]
    last = set(holders) <= leaving.keys()
    for worker in own:
        name = worker.instance_id
        if name in leaving and (worker.member is first or (last and name in holders)):
            replaced[name] = leaving.pop(name)
    return leaving, replaced


def _take_idle(
    workers: Sequence[TrainingInstance],
    inputs: ScalingInputs,
    reserved: ReservedState,
    decision: ScalingDecision,
) -> ScalingDecision:
    """Request idle reserved instances: those that are missing, else as many as replace paid ones."""
    staying = [worker for worker in workers if worker.stays]
    missing = inputs.target - len(staying)
    if inputs.is_launching or not reserved.idle:
        return decision
    if missing > 0:
        count, purpose = min(missing, reserved.idle), "complete the run"
    else:
        first = choose_coordinator(workers)
        paid = [w for w in staying if not w.member.instance.reservation_id and w.member is not first]
        is_waiting = inputs.refusals is not None and inputs.refusals.retry_at > inputs.now
        count = 0 if is_waiting else min(len(paid) + missing, reserved.idle)
        purpose = "replace instances that are paid for"
    if count <= 0:
        return decision
    reason = f"{reserved.idle} reserved instance(s) are idle: {count} {purpose}, at 0 USD marginal"
    return replace(
        decision, launch=count, reserved_only=True, retry_at=None, reasons=(*decision.reasons, reason)
    )
