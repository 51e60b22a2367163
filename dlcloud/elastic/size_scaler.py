"""Keep a training at the size that is asked for, with what the recipe's reservations give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.reports import WorkerReport
from dlcloud.elastic.reserved import ReservationWatch
from dlcloud.elastic.scaler import RequestEnded
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CloudError
from dlcloud.model.events import Emit, Warned
from dlcloud.recipe.instances import Instances
from dlcloud.scheduling.reserved_workers import NO_RESERVED, ScalingInputs, decide_with_reserved
from dlcloud.scheduling.scaling import LaunchRefusals, ScalingDecision, Worker


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
    registry: WorkerRegistry
    clock: Clock
    emit: Emit
    reserved: ReservationWatch | None = None
    _refusals: LaunchRefusals | None = field(init=False, default=None)

    @property
    def target(self) -> int:
        return self.size()

    def observe(self, report: WorkerReport) -> None:
        """Do nothing: the size does not depend on what workers report."""

    def decide(self, workers: Sequence[Worker], *, is_launching: bool) -> ScalingDecision:
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
        staying = sum(worker.stays for worker in self.registry.workers)
        if final is not None:
            return f"no more instances at this size: {final.message}; going on with {staying}"
        reason = "" if ended.error is None else f" ({ended.error})"
        wait_s = (refusals.retry_at - refusals.at).total_seconds()
        return f"no more instances for now{reason}: going on with {staying}, asking again in {wait_s:.0f} s"
