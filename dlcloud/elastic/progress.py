"""Show what workers report: each event that concerns people, and the newest step now and then."""

from dataclasses import dataclass, field

from dlcloud.elastic.registry import WAITING_EVENTS, WorkerRegistry
from dlcloud.elastic.reports import EventReported, WorkerReport
from dlcloud.model.clock import Clock
from dlcloud.model.events import Emit, Info, Progress, Warned
from dlcloud.trainer.records import EventName

PROGRESS_EVERY_S = 1.0

MESSAGES = {
    EventName.NOTICE: "is interrupted: {cause}",
    EventName.REBALANCE: "is at risk: {cause}",
    EventName.DRAINED: "has left at step {step}: {cause}",
    EventName.JOINED: "has joined at step {step}",
    EventName.HEALED: "has the state of step {step} from a peer",
    EventName.COORDINATOR: "asks the new coordinator from step {step} on",
    EventName.RESUMED: "goes on from the checkpoint of step {step}",
    EventName.STORED: "the checkpoint of step {step} is stored {cause}",
    EventName.STORE_FAILED: "the checkpoint of step {step} is not stored: {cause}",
    EventName.HOLD: "waiting: {cause}",
    EventName.NO_QUORUM: "waiting: {cause}",
    EventName.DONE: "the last step, {step}, is committed",
}
"""The events that are shown."""

RISK_EVENTS = frozenset({EventName.NOTICE, EventName.REBALANCE, EventName.STORE_FAILED})


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Emits the progress of one training."""

    registry: WorkerRegistry
    clock: Clock
    emit: Emit
    _shown_at: float = field(init=False, default=float("-inf"))
    _waiting: str = field(init=False, default="")

    def show_event(self, instance_id: str, report: WorkerReport) -> None:
        """Emit an event, if it is shown."""
        if not isinstance(report, EventReported) or report.name not in MESSAGES:
            return
        step = "?" if report.step is None else report.step
        text = MESSAGES[report.name].format(cause=report.cause, step=step)
        # Before the first step it is normal to wait for the others.
        is_halted = report.name in WAITING_EVENTS and self.registry.step > 0
        kind = Warned if report.name in RISK_EVENTS or is_halted else Info
        self.emit(kind(message=text, instance_id=instance_id))

    def show_step(self) -> None:
        """Emit the newest step, and what the workers wait for; at most once a second unless that changes."""
        now, registry = self.clock.monotonic(), self.registry
        is_due = now - self._shown_at >= PROGRESS_EVERY_S or registry.waiting != self._waiting
        if not is_due or not (registry.step or registry.waiting):
            return
        self._shown_at, self._waiting = now, registry.waiting
        loss = "" if registry.loss is None else f", loss {registry.loss:.4g}"
        state = f"waiting: {self._waiting}" if self._waiting else f"{registry.world_size} worker(s)"
        message = f"step {registry.step}{loss}, {state}"
        self.emit(Progress(message=message, done=registry.step, total=registry.steps))
