"""The decisions of an elastic run: which workers to replace, when to request instances, which let leave.

`decide` keeps a number of workers. `decide_with_reserved` does so with Capacity Reservations: which workers
leave one, and when reserved capacity replaces instances that are paid for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Instance, Market
from dlcloud.model.money import FREE_FIRST_S
from dlcloud.planning.reservations import BLOCK_MARGIN, CapacityReservation, without_ending
from dlcloud.planning.resize import coordinator, decide_size

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)
"""After a refusal the next request waits, twice as long each time: capacity comes back in minutes, and a
request that is refused costs only its call."""


NOTICE = timedelta(minutes=2)
EC2_ENDS_WITHIN = timedelta(minutes=5)
"""After so long an interrupted instance is terminated by us: EC2 ends it two minutes after its notice.

Source: EC2 user guide, "Spot Instance interruption notices".
"""


class InstanceStage(StrEnum):
    """What an instance does in a training, in the order in which it changes.

    ARRIVING is being set up; TRAINING takes part in steps; AT_RISK does so after a rebalance recommendation,
    INTERRUPTED after an interruption notice; LEAVING drains; GONE takes part no more.
    """

    ARRIVING = "arriving"
    TRAINING = "training"
    AT_RISK = "at risk"
    INTERRUPTED = "interrupted"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInstance:
    """An instance that takes part in a training, with its workers, and what it does there."""

    member: Member
    state: InstanceStage

    @property
    def instance_id(self) -> str:
        return self.member.instance.instance_id

    @property
    def stays(self) -> bool:
        """True if it trains, or will, and nothing asks it to leave."""
        return self.state in {InstanceStage.ARRIVING, InstanceStage.TRAINING}


ASKS = 600
"""With a deadline, what refuses is asked again at least this many times until then."""
SHORTEST_WAIT = timedelta(seconds=1)


def longest_wait(allowed: timedelta) -> timedelta:
    """Return the longest wait after a refusal, if there is so much time from the start to the deadline."""
    return max(SHORTEST_WAIT, min(allowed / ASKS, LONGEST_WAIT))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefusals:
    """The last `times` requests in a row were refused, the last one at `at`.

    `final_for`: the target for which no more are made, because the last one was refused as denied or invalid.
    """

    times: int
    at: datetime
    final_for: int | None = None

    @property
    def retry_at(self) -> datetime:
        doubled = FIRST_WAIT * (1 << min(self.times - 1, 10))
        return self.at + min(doubled, LONGEST_WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """What the controller does next.

    Attributes:
        launch: Instances to request.
        drain: Ids of the instances whose workers are asked to leave.
        retry_at: When refused instances are requested again; None if none are missing, or never.
        reasons: For people.
        market: The only market that is asked; None: those of the recipe, in their order.
        pools: With a market: the names of its pools that are asked.
        reserved_only: Reservations alone are asked.
        on_demand_only: On-demand pools alone are asked: another coordinator is needed.
        causes: Why workers leave, by instance id, if not for the target.
    """

    launch: int
    drain: tuple[str, ...]
    retry_at: datetime | None
    reasons: tuple[str, ...]
    market: Market | None = None
    pools: tuple[str, ...] = ()
    reserved_only: bool = False
    on_demand_only: bool = False
    causes: Mapping[str, str] = field(default_factory=dict)


def decide(
    workers: Sequence[TrainingInstance],
    *,
    target: int,
    now: datetime,
    base: int = 0,
    rounds: Sequence[Market] = (Market.ON_DEMAND,),
    is_launching: bool = False,
    refusals: LaunchRefusals | None = None,
) -> ScalingDecision:
    """Decide which instances to request and which workers to let leave.

    An interrupted instance is replaced immediately, not when it is gone. Without an on-demand instance one
    more is requested, whatever the target: a run needs a coordinator. A worker at risk is replaced first and
    leaves when the new one trains. Surplus workers leave in the order of `dlcloud resize`.

    Args:
        workers: All that the run has had.
        target: Requested workers.
        now: The time.
        base: Workers that are on-demand, whatever the market.
        rounds: The markets of the others.
        is_launching: True while a request for instances is under way.
        refusals: Since the last request that gave an instance; None without any.
    """
    staying = [worker for worker in workers if worker.stays]
    at_risk = [worker for worker in workers if worker.state is InstanceStage.AT_RISK]
    drain, reasons = _choose_leaving(staying, at_risk, target, base=base, rounds=rounds)
    is_coordinated = choose_coordinator(workers) is not None
    missing = max(target - len(staying), int(not is_coordinated))
    if missing <= 0 or is_launching:
        return ScalingDecision(launch=0, drain=drain, retry_at=None, reasons=reasons)
    if refusals is not None and refusals.final_for == target and is_coordinated:
        return ScalingDecision(launch=0, drain=drain, retry_at=None, reasons=reasons)
    if refusals is not None and refusals.retry_at > now:
        return ScalingDecision(launch=0, drain=drain, retry_at=refusals.retry_at, reasons=reasons)
    reason = f"{len(staying)} of {target} workers stay: requesting {missing} more"
    return ScalingDecision(launch=missing, drain=drain, retry_at=None, reasons=(*reasons, reason))


def minimum_workers(minimum: int, target: int, *, current: int | None = None, training: int = 0) -> int:
    """Return how many workers every step needs: the recipe's minimum, but no more than are requested.

    Args:
        minimum: The recipe's.
        target: Requested workers.
        current: The number in force. It is raised only once this many workers train, so that a larger target
            does not stop a training that is under way.
        training: Workers that train.
    """
    allowed = min(minimum, max(1, target))
    if current is None or allowed <= current or training >= allowed:
        return allowed
    return current


def is_free_if_ec2_ends_it(instance: Instance, now: datetime) -> bool:
    """True for an interrupted spot instance that costs nothing unless we terminate it ourselves.

    Source: EC2 user guide, "Billing for interrupted Spot Instances": the first hour is free if EC2 ends it.
    """
    ends_by = now - instance.launched_at + NOTICE
    return instance.market is Market.SPOT and ends_by < timedelta(seconds=FREE_FIRST_S)


def choose_coordinator(workers: Sequence[TrainingInstance]) -> Member | None:
    """Return the oldest on-demand instance whose worker stays; None without one."""
    return coordinator([worker.member for worker in workers if worker.stays])


def _choose_leaving(
    staying: Sequence[TrainingInstance],
    at_risk: Sequence[TrainingInstance],
    target: int,
    *,
    base: int,
    rounds: Sequence[Market],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    training = {worker.instance_id for worker in staying if worker.state is InstanceStage.TRAINING}
    replaced = [worker.instance_id for worker in at_risk] if len(training) >= target else []
    reasons = [f"{name} is replaced and leaves: it was at risk" for name in replaced]
    members = [worker.member for worker in staying]
    ending = decide_size(members, target, base=base, rounds=rounds).end if len(members) > target else ()
    surplus = [member.instance.instance_id for member in ending]
    surplus = _keep_until_replaced(surplus, staying, target)
    if training <= set(surplus):
        # The staying workers still arrive: until they train, only these hold the state.
        surplus = [name for name in surplus if name not in training]
    reasons += [f"{name} leaves: {target} workers are requested" for name in surplus]
    return (*replaced, *surplus), tuple(reasons)


def _keep_until_replaced(
    surplus: Sequence[str], staying: Sequence[TrainingInstance], target: int
) -> list[str]:
    """Keep as many training workers as are requested while reserved instances that replace some arrive."""
    arriving = {worker.instance_id for worker in staying if worker.state is InstanceStage.ARRIVING}
    if not any(worker.member.instance.reservation_id for worker in staying if worker.instance_id in arriving):
        return list(surplus)
    training = [name for name in surplus if name not in arriving]
    spare = max(0, len(staying) - len(arriving) - target)
    return [name for name in surplus if name in arriving or name in training[:spare]]


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
