"""The decisions of an elastic run: whom to replace and when to ask again, whom to let go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dlcloud.core.cluster import Member
from dlcloud.core.instance import Market
from dlcloud.core.resize import coordinator
from dlcloud.core.resize import decide as decide_size

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)
"""After a refusal the next request waits, twice as long each time: capacity comes back in minutes, and a
request that is refused costs nothing but its call."""


class WorkerState(StrEnum):
    """Where the worker on an instance stands.

    ARRIVING is set up, TRAINING takes part; AT_RISK takes part although EC2 recommends to move on (a
    rebalance recommendation); LEAVING drains, or is told of its interruption; GONE takes no part any more.
    """

    ARRIVING = "arriving"
    TRAINING = "training"
    AT_RISK = "at risk"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """An instance of the run."""

    member: Member
    standing: WorkerState

    @property
    def instance_id(self) -> str:
        """Return the instance's id."""
        return self.member.instance.instance_id

    @property
    def stays(self) -> bool:
        """Tell whether it can be counted on."""
        return self.standing in {WorkerState.ARRIVING, WorkerState.TRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefusals:
    """What became of the last requests: `times` in a row gave nothing, the last at `at`."""

    times: int
    at: datetime

    @property
    def again_at(self) -> datetime:
        """Return when to ask again."""
        doubled = FIRST_WAIT * (1 << min(self.times - 1, 10))
        return self.at + min(doubled, LONGEST_WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """What the controller does next.

    Attributes:
        launch: How many instances to ask for.
        drain: Who is to leave after its step, by instance id.
        look_at: When to decide again, if nothing happens before.
        reasons: Why, for people.
    """

    launch: int
    drain: tuple[str, ...]
    look_at: datetime | None
    reasons: tuple[str, ...]


def decide(
    workers: Sequence[Worker],
    *,
    target: int,
    now: datetime,
    base: int = 0,
    rounds: Sequence[Market] = (Market.ON_DEMAND,),
    asking: bool = False,
    refused: LaunchRefusals | None = None,
) -> ScalingDecision:
    """Decide what to do with the workers that there are.

    Who is interrupted is replaced at once, not when it is gone. Where no on-demand instance is left, one more
    is asked for whatever the target: somebody must coordinate. Who is at risk is replaced first and leaves
    when the newcomer trains. What is too much leaves, in the order of `dlcloud resize`.

    Args:
        workers: All that the run has had.
        target: How many are wanted.
        now: The time.
        base: How many are to be on-demand, whatever the market.
        rounds: The markets of the others.
        asking: Whether a request for instances is under way.
        refused: The refusals that came last, if the last request gave nothing.
    """
    staying = [worker for worker in workers if worker.stays]
    at_risk = [worker for worker in workers if worker.standing is WorkerState.AT_RISK]
    drain, drain_reasons = _drain(staying, at_risk, target, base=base, rounds=rounds)
    missing = max(target - len(staying), int(successor(workers) is None))
    if missing <= 0 or asking:
        return ScalingDecision(launch=0, drain=drain, look_at=None, reasons=drain_reasons)
    if refused is not None and refused.again_at > now:
        return ScalingDecision(launch=0, drain=drain, look_at=refused.again_at, reasons=drain_reasons)
    why = f"{len(staying)} of {target} workers can be counted on: asking for {missing} more"
    return ScalingDecision(launch=missing, drain=drain, look_at=None, reasons=(*drain_reasons, why))


def minimum_workers(minimum: int, target: int, *, current: int | None = None, training: int = 0) -> int:
    """Return how many workers a step needs: as the recipe says, but never more than are asked for.

    Args:
        minimum: The recipe's.
        target: How many workers are asked for.
        current: The number that is in force; it is raised only once so many workers train, so that a larger
            target does not stop a training that is under way.
        training: How many workers train.
    """
    allowed = min(minimum, max(1, target))
    if current is None or allowed <= current or training >= allowed:
        return allowed
    return current


def successor(workers: Sequence[Worker]) -> Member | None:
    """Return who coordinates, of those that can be counted on: the oldest on-demand one."""
    return coordinator([worker.member for worker in workers if worker.stays])


def _drain(
    staying: Sequence[Worker],
    at_risk: Sequence[Worker],
    target: int,
    *,
    base: int,
    rounds: Sequence[Market],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    training = [worker for worker in staying if worker.standing is WorkerState.TRAINING]
    replaced = [worker.instance_id for worker in at_risk] if len(training) >= target else []
    reasons = [f"{name} is replaced and leaves: it was at risk" for name in replaced]
    members = [worker.member for worker in staying]
    surplus = decide_size(members, target, base=base, rounds=rounds).end if len(members) > target else ()
    too_many = [member.instance.instance_id for member in surplus]
    trains = {worker.instance_id for worker in training}
    if trains <= set(too_many):
        # Who stays still arrives: until it trains, nobody but these has the state.
        too_many = [name for name in too_many if name not in trains]
    reasons += [f"{name} leaves: {target} workers are wanted" for name in too_many]
    return (*replaced, *too_many), tuple(reasons)
