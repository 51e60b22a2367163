"""Which instance controls a detached cluster after its controller is lost.

A few instances of the training stand by. Each that hears nothing of the coordinator claims the next term of
control; EC2 accepts one claim of a term. Before the winner controls anything, every other instance that
controlled the cluster, or claimed to, is terminated: one that was only cut off cannot come back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dlcloud.model.cluster import CONTROLLER_TAG, ControlClaim
from dlcloud.model.instance import Instance, Market
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance

STANDBYS = 2
"""Instances that stand by: one may be lost together with the coordinator."""

TAKEOVER = timedelta(minutes=5)
"""The longest time that a claim may take to become a coordinator, before another instance may claim."""


class Turn(StrEnum):
    """What an instance does that hears nothing of the coordinator.

    CLAIM: claim a term. CONTINUE: its own claim stands, and is to be carried on. WAIT: another instance has
    claimed and may be about to take over. REFUSED: the instance itself is to end.
    """

    CLAIM = "claim"
    CONTINUE = "continue"
    WAIT = "wait"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessionDecision:
    """What an instance does, in which term, and which instances it terminates before it takes over."""

    turn: Turn
    term: int
    fence: tuple[str, ...]
    reason: str


def decide_succession(
    own: str, instances: Sequence[Instance], claims: Sequence[ControlClaim], now: datetime
) -> SuccessionDecision:
    """Decide whether an instance that hears nothing of the coordinator claims the control.

    Args:
        own: Id of the instance.
        instances: The cluster's, as EC2 lists them.
        claims: All that were ever made for the cluster.
        now: The time.
    """
    living = {instance.instance_id: instance for instance in instances if instance.alive}
    newest = max(claims, key=lambda claim: claim.term, default=None)
    controllers = {name for name, instance in living.items() if CONTROLLER_TAG in instance.tags}
    fence = tuple(sorted((controllers | {c.instance_id for c in claims} & living.keys()) - {own}))
    has_controlled = own in controllers or any(claim.instance_id == own for claim in claims)
    holder = newest.instance_id if newest is not None else ""
    if own not in living:
        turn, term, reason = Turn.REFUSED, 0, "EC2 does not list this instance as running"
    elif newest is None:
        turn, term = (Turn.CONTINUE, 0) if has_controlled else (Turn.CLAIM, 1)
        reason = "this instance is the coordinator" if has_controlled else "the coordinator does not answer"
    elif holder == own:
        turn, term, reason = Turn.CONTINUE, newest.term, "this instance has claimed the control"
    elif has_controlled:
        turn, term, reason = Turn.REFUSED, newest.term, f"{holder} has taken over since"
    elif holder in living and now - newest.at < TAKEOVER:
        turn, term, reason = Turn.WAIT, newest.term, f"{holder} is taking over"
    else:
        turn, term, reason = Turn.CLAIM, newest.term + 1, f"{holder} does not answer"
    fence = fence if turn in {Turn.CLAIM, Turn.CONTINUE} else ()
    return SuccessionDecision(turn=turn, term=term, fence=fence, reason=reason)


def choose_standbys(
    workers: Sequence[TrainingInstance], controller: str, chosen: Sequence[str] = (), most: int = STANDBYS
) -> tuple[str, ...]:
    """Return the instances that stand by, in the order in which they take over.

    Those that stand by already stay, as long as they train; then on-demand instances, then the oldest.

    Args:
        workers: All that the run has had.
        controller: Id of the instance that controls the cluster.
        chosen: The instances that stand by already.
        most: How many there are at most.
    """
    training = [
        worker
        for worker in workers
        if worker.state is InstanceStage.TRAINING and worker.instance_id != controller
    ]

    def order(worker: TrainingInstance) -> tuple[bool, bool, datetime, str]:
        instance = worker.member.instance
        is_new = instance.instance_id not in chosen
        return is_new, instance.market is not Market.ON_DEMAND, instance.launched_at, instance.instance_id

    return tuple(worker.instance_id for worker in sorted(training, key=order)[:most])
