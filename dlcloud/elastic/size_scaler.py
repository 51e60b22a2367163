"""Keep a training at the size that is asked for, with what the recipe's reservations give."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dlcloud.elastic.controller import RequestEnded
from dlcloud.elastic.registry import TrainingRegistry
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CloudError, DlcloudError
from dlcloud.model.events import Emit, Warned
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.recipe.instances import Instances
from dlcloud.scheduling.scaling import (
    NO_RESERVED,
    LaunchRefusals,
    ReservedState,
    ScalingDecision,
    ScalingInputs,
    TrainingInstance,
    assess_reserved,
    decide_with_reserved,
)


@dataclass(slots=True, kw_only=True)
class SizeScaler:
    """Decides for one training whose size the recipe says, or `dlcloud resize`.

    Args:
        size: Returns the requested number of workers.
        instances: The recipe's.
        registry: The workers.
        reserved: Looks at the recipe's reservations; None where it uses none.
    """

    size: Callable[[], int]
    instances: Instances
    registry: TrainingRegistry
    clock: Clock
    emit: Emit
    reserved: "ReservationWatch | None" = None
    _refusals: LaunchRefusals | None = field(init=False, default=None)

    @property
    def target(self) -> int:
        return self.size()

    def decide(self, workers: Sequence[TrainingInstance], *, is_launching: bool) -> ScalingDecision:
        inputs = ScalingInputs(
            target=self.target,
            now=self.clock.now(),
            base=self.instances.on_demand_base,
            rounds=self.instances.rounds,
            is_launching=is_launching,
            refusals=self._refusals,
        )
        reserved = NO_RESERVED if self.reserved is None else self.reserved.assess(workers)
        return decide_with_reserved(workers, inputs, reserved)

    def record(self, decision: ScalingDecision) -> None:
        """Remember which reserved instances are on their way back."""
        for name in decision.drain if self.reserved is not None else ():
            if self.reserved is not None and self.registry.member(name).instance.reservation_id:
                self.reserved.return_instance(name)

    def handle_request(self, ended: RequestEnded) -> None:
        """Wait before the next request if this one gave nothing."""
        if self.reserved is not None:
            self.reserved.forget()
        self._refusals = None if ended.new else self._refuse(ended)

    def _refuse(self, ended: RequestEnded) -> LaunchRefusals:
        """Return the refusals so far; after a denial or an invalid request no other is made at this size."""
        final = ended.final_error
        refusals = LaunchRefusals(
            times=1 if self._refusals is None else self._refusals.times + 1,
            at=self.clock.now(),
            final_for=None if final is None else self.target,
        )
        self.emit(Warned(message=self._message(ended, final, refusals)))
        return refusals

    def _message(self, ended: RequestEnded, final: CloudError | None, refusals: LaunchRefusals) -> str:
        staying = sum(worker.stays for worker in self.registry.instances)
        if final is not None:
            return f"no more instances at this size: {final.message}; continuing with {staying}"
        reason = "" if ended.error is None else f" ({ended.error})"
        wait_s = (refusals.retry_at - refusals.at).total_seconds()
        return f"no more instances for now{reason}: continuing with {staying}, retrying in {wait_s:.0f} s"


POLL_S = 10.0
RETURN_TIME = timedelta(minutes=2)
"""So long after its worker was asked to leave an instance counts as on its way back."""


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="list reservations", daemon=True).start()


@dataclass(slots=True, kw_only=True)
class ReservationWatch:
    """Lists reservations every few seconds, from a thread.

    Args:
        ask: Lists the recipe's reservations.
        keep_free: Returns how many instances stay idle: the recipe's number, or that of `dlcloud resize`.
        start: Starts the work of listing.
    """

    ask: Callable[[], Sequence[CapacityReservation]]
    keep_free: Callable[[], int]
    clock: Clock
    emit: Emit
    start: Callable[[Callable[[], None]], None] = _start_thread
    _listed: tuple[int, Sequence[CapacityReservation]] | None = field(init=False, default=None)
    _asked_at: float = field(init=False, default=float("-inf"))
    _is_asking: bool = field(init=False, default=False)
    _is_stale: bool = field(init=False, default=False)
    _generation: int = field(init=False, default=0)
    _given_back: dict[str, datetime] = field(init=False, default_factory=dict)
    _has_warned: bool = field(init=False, default=False)

    def assess(self, workers: Sequence[TrainingInstance]) -> ReservedState:
        """Return what they say about the workers; nothing until they are listed."""
        now = self.clock.monotonic()
        if not self._is_asking and now - self._asked_at >= POLL_S:
            self._is_asking, self._asked_at = True, now
            self.start(self._list)
        if self._listed is None:
            return NO_RESERVED
        keep_free, chosen = self._listed
        since = self.clock.now() - RETURN_TIME
        returning = sum(at > since for at in self._given_back.values())
        state = assess_reserved(
            workers, chosen, keep_free=keep_free, now=self.clock.now(), returning=returning
        )
        # What goes back still goes back: else those that were launched in its place were too many.
        return replace(state, idle=0) if self._is_stale else state

    def forget(self) -> None:
        """List them again before idle ones are requested: a launch has changed what is idle."""
        self._generation += 1
        self._is_stale, self._asked_at = True, float("-inf")

    def return_instance(self, instance_id: str) -> None:
        """Record that a worker was asked to leave its reservation."""
        self._given_back.setdefault(instance_id, self.clock.now())

    def _list(self) -> None:
        generation = self._generation
        try:
            listed = (self.keep_free(), self.ask())
        except DlcloudError as error:
            if not self._has_warned:
                self.emit(Warned(message=f"cannot list reservations: {error.message}"))
            self._has_warned = True
        else:
            if generation == self._generation:
                self._listed, self._is_stale = listed, False
        finally:
            self._is_asking = False
