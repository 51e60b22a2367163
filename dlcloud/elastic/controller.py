"""Run an elastic training from its first step to its last, and keep it at its size."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlcloud.elastic.deadline import DeadlineScaler
from dlcloud.elastic.departures import Departures
from dlcloud.elastic.failover import CoordinatorFailover, CoordinatorTerminated, Phase
from dlcloud.elastic.program import Coordinator
from dlcloud.elastic.refusals import SETUP_ERRORS, final_error
from dlcloud.elastic.registry import WAITING_EVENTS, WorkerRegistry
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.reserved import ReservationWatch
from dlcloud.elastic.standbys import Standbys
from dlcloud.elastic.workers import RecordsReceived, WorkerExited, Workers
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import CloudError, DlcloudError, InstanceError
from dlcloud.model.events import Emit, Notice, Progress, Warned
from dlcloud.planning.resize import coordinator
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.elastic import (
    LaunchRefusals,
    ScalingDecision,
    WorkerState,
    choose_coordinator,
    minimum_workers,
)
from dlcloud.scheduling.reserved_workers import NO_RESERVED, ScalingInputs, decide_with_reserved

TICK_S = 0.25
PROGRESS_EVERY_S = 1.0
LINGER_S = 30.0
"""How long after the last step the workers may take to end and to copy their files home."""

MOST_FAILURES = 3
"""So many workers in a row that fail before a step are the program's fault, not their instances'."""

MESSAGES = {
    "notice": "is interrupted: {cause}",
    "rebalance": "is at risk: {cause}",
    "drained": "has left at step {step}: {cause}",
    "joined": "has joined at step {step}",
    "healed": "has the state of step {step} from a peer",
    "coordinator": "asks the new coordinator from step {step} on",
    "resumed": "goes on from the checkpoint of step {step}",
    "checkpoint_stored": "the checkpoint of step {step} is stored {cause}",
    "checkpoint_store_failed": "the checkpoint of step {step} is not stored: {cause}",
    "hold": "waiting: {cause}",
    "no_quorum": "waiting: {cause}",
    "done": "the last step, {step}, is committed",
}
"""The events that are shown, by their name in the records."""

RISK_EVENTS = {"notice", "rebalance", "checkpoint_store_failed"}


Post = Callable[[RecordsReceived | WorkerExited], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUpFinished:
    """A request for instances has ended; `error` if it could not be made."""

    decision: ScalingDecision | None = None
    grown: LaunchedMembers | None = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class Controller:
    """Keeps one training at its size.

    Args:
        make_workers: Factory for `Workers`; takes the present coordinator and the sink of what happens.
        grow: Launches the instances of a decision; the named ones are connected already.
        end: Terminates instances.
        target: Returns the requested number of workers.
        rehearsal: The incidents of the recipe.
        restored: Committed steps of the checkpoint in S3 that a new run goes on from.
        deadline: Chooses size and markets in place of `target`, where the recipe has a deadline.
        standbys: Keeps instances ready to take over, where one of the cluster's own controls it.
        reserved: Looks at the recipe's reservations, where it uses some.
        term: Of a controller that took over from one that is lost; 0 for the first one.
    """

    cluster: Cluster
    recipe: Recipe
    make_workers: Callable[[Callable[[], Coordinator], Post], Workers]
    grow: Callable[[ScalingDecision, Sequence[str]], LaunchedMembers]
    end: Callable[[Sequence[Member]], object]
    target: Callable[[], int]
    clock: Clock
    emit: Emit
    rehearsal: Rehearsal | None = None
    restored: int = 0
    deadline: DeadlineScaler | None = None
    standbys: Standbys | None = None
    reserved: ReservationWatch | None = None
    term: int = 0
    registry: WorkerRegistry = field(default_factory=WorkerRegistry)
    _workers: Workers = field(init=False)
    _failover: CoordinatorFailover = field(init=False)
    _departures: Departures = field(init=False)
    _inbox: "queue.Queue[object]" = field(init=False, default_factory=queue.Queue)
    _following: set[str] = field(init=False, default_factory=set)
    _drained: set[str] = field(init=False, default_factory=set)
    _is_launching: bool = field(init=False, default=False)
    _refusals: LaunchRefusals | None = field(init=False, default=None)
    _first_step_at: float | None = field(init=False, default=None)
    _done_at: float | None = field(init=False, default=None)
    _progress_at: float = field(init=False, default=float("-inf"))
    _waiting: str = field(init=False, default="")
    _failures: int = field(init=False, default=0)

    def run(self, members: Sequence[Member]) -> None:
        """Train to the last step.

        Args:
            members: The instances that are up; agents that run on them already are followed.

        Raises:
            InstanceError: The coordinator is gone, and no other instance has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        first = coordinator(members)
        if first is None:
            raise InstanceError(f"{self.cluster.name} has no on-demand instance to coordinate the others")
        self._workers = self.make_workers(lambda: self._failover.coordinator, self._inbox.put)
        self._failover = CoordinatorFailover(
            registry=self.registry,
            following=self._following,
            inform=self._workers.write_control,
            touch=self._workers.remind,
            end=self.end,
            post=self._inbox.put,
            clock=self.clock,
            emit=self.emit,
        )
        self._departures = Departures(registry=self.registry, end=self.end, clock=self.clock, emit=self.emit)
        members = self._release_unknown(members, first) if self.term else members
        for member in members:
            self._add(member)
        minimum = minimum_workers(self.recipe.instances.minimum, self._target)
        self._failover.begin(first, minimum, self.restored, self.term)
        for member in members:
            self._workers.serve(member)
        self._failover.notify_all()
        while not self._is_over():
            self._handle_inbox()
            self._act()

    def _release_unknown(self, members: Sequence[Member], first: Member) -> list[Member]:
        """Terminate the instances that the lost controller was setting up: how far they were is not known."""
        kept = [member for member in members if member is first or self._workers.has_run(member)]
        for member in members:
            if member not in kept:
                self.registry.add(member)
                self._departures.release(member.instance.instance_id)
                self.registry.mark_gone(member.instance.instance_id)
        return kept

    def _add(self, member: Member) -> None:
        name = member.instance.instance_id
        self.registry.add(member)
        self._following.add(name)
        for record in self._workers.read_stored(member):
            self._observe(name, record)
        for record in self._workers.read_newest(member) if self.term else ():
            self.registry.observe(name, record)

    def _observe(self, name: str, record: Mapping[str, Any]) -> None:
        self.registry.observe(name, record)
        if self.deadline is not None:
            self.deadline.observe(record)

    def _is_over(self) -> bool:
        if not self.registry.done:
            return False
        now = self.clock.monotonic()
        self._done_at = now if self._done_at is None else self._done_at
        arrived = {w.instance_id for w in self.registry.workers if w.state is not WorkerState.ARRIVING}
        return not self._following & arrived or now - self._done_at > LINGER_S

    def _handle_inbox(self) -> None:
        """Wait for an item at most a tick, then handle all that are there."""
        try:
            items = [self._inbox.get(timeout=TICK_S)]
        except queue.Empty:
            return
        while not self._inbox.empty():
            items.append(self._inbox.get())
        for item in items:
            match item:
                case RecordsReceived():
                    self._handle_records(item)
                case WorkerExited():
                    self._handle_exit(item)
                case ScaleUpFinished():
                    self._handle_scale_up(item)
                case CoordinatorTerminated():
                    self._failover.handle_terminated()

    def _handle_records(self, received: RecordsReceived) -> None:
        for record in received.records:
            self._observe(received.instance_id, record)
            if record.get("record") == "step":
                self._failures = 0
                if self._first_step_at is None:
                    self._first_step_at = self.clock.monotonic()
            event = record.get("event") if record.get("record") == "event" else None
            if isinstance(event, str) and event in MESSAGES:
                text = MESSAGES[event].format(cause=record.get("cause", ""), step=record.get("step", "?"))
                # Before the first step it is normal to wait for the others.
                is_halted = event in WAITING_EVENTS and self.registry.step > 0
                kind = Warned if event in RISK_EVENTS or is_halted else Notice
                self.emit(kind(message=text, instance_id=received.instance_id))
        self._failover.observe(received.instance_id, received.records)
        self._show_progress()

    def _show_progress(self) -> None:
        now, registry = self.clock.monotonic(), self.registry
        is_due = now - self._progress_at >= PROGRESS_EVERY_S or registry.waiting != self._waiting
        if not is_due or not (registry.step or registry.waiting):
            return
        self._progress_at, self._waiting = now, registry.waiting
        loss = "" if registry.loss is None else f", loss {registry.loss:.4g}"
        state = f"waiting: {self._waiting}" if self._waiting else f"{registry.world_size} worker(s)"
        message = f"step {registry.step}{loss}, {state}"
        self.emit(Progress(message=message, done=registry.step, total=registry.steps))

    def _handle_exit(self, exited: WorkerExited) -> None:
        name = exited.instance_id
        self._following.discard(name)
        self.registry.mark_gone(name)
        if exited.error is not None and not isinstance(exited.error, DlcloudError):
            raise exited.error
        if self.registry.done or (exited.run is not None and exited.run.exit_status == 0):
            return
        is_coordinator = name == self._failover.coordinator.instance_id
        if is_coordinator and not self.registry.step and isinstance(exited.error, SETUP_ERRORS):
            # What its set-up lacks, every instance lacks: replacing it would go on for ever.
            raise exited.error
        if exited.error is not None:
            self.emit(Warned(message=str(exited.error), instance_id=name))
        if not exited.is_drained and exited.run is not None:
            # A program that fails on the coordinator before the first step fails on every instance.
            self._count_failure(exited, 1 if is_coordinator and not self.registry.step else MOST_FAILURES)
        if is_coordinator:
            self._failover.handle_loss()
        else:
            self._departures.release_departed(name)
            self._failover.handle_departure()

    def _count_failure(self, exited: WorkerExited, most: int) -> None:
        self._failures += 1
        if exited.run is not None and self._failures >= most:
            raise self._workers.error_of(exited.run)
        self.emit(Warned(message="its worker failed, and is replaced", instance_id=exited.instance_id))

    def _handle_scale_up(self, finished: ScaleUpFinished) -> None:
        self._is_launching = False
        if self.reserved is not None:
            self.reserved.forget()
        if finished.error is not None and not isinstance(finished.error, DlcloudError):
            raise finished.error
        members = [] if finished.grown is None else finished.grown.members
        new = [member for member in members if not self.registry.has(member.instance.instance_id)]
        for member in new:
            self._add(member)
        self._failover.appoint()
        for member in new:
            self._workers.serve(member)
        final = final_error(finished.grown, finished.error)
        if self.deadline is not None and finished.decision is not None:
            count = sum(member.instance.market is finished.decision.market for member in new)
            self.deadline.handle_launch(
                finished.decision, finished.grown, new=count, is_final=final is not None
            )
            if finished.error is not None:
                self.emit(Warned(message=str(finished.error)))
            if final is not None and choose_coordinator(self.registry.workers) is None:
                raise final
        else:
            self._refusals = None if new else self._refuse(final, finished.error)

    def _refuse(self, final: CloudError | None, error: BaseException | None) -> LaunchRefusals:
        """Return the refusals so far; after a denial or an invalid request no other is made at this size.

        Raises:
            CloudError: Such a one, if no instance is left to coordinate the others.
        """
        times = 1 if self._refusals is None else self._refusals.times + 1
        refusals = LaunchRefusals(
            times=times, at=self.clock.now(), final_for=None if final is None else self.target()
        )
        staying = sum(worker.stays for worker in self.registry.workers)
        if final is not None:
            if choose_coordinator(self.registry.workers) is None:
                raise final
            message = f"no more instances at this size: {final.message}; going on with {staying}"
            self.emit(Warned(message=message))
            return refusals
        reason = "" if error is None else f" ({error})"
        wait_s = (refusals.retry_at - refusals.at).total_seconds()
        message = (
            f"no more instances for now{reason}: going on with {staying}, asking again in {wait_s:.0f} s"
        )
        self.emit(Warned(message=message))
        return refusals

    def _act(self) -> None:
        """Start incidents, follow the target, let surplus workers leave, and request missing ones."""
        self._failover.remind()
        self._departures.release_overdue()
        if self.registry.done or self._failover.phase is Phase.TERMINATING:
            return
        self._failover.appoint()
        if self.standbys is not None and self._failover.phase is Phase.STEADY:
            self.standbys.update(self.registry.workers, self._failover.coordinator.instance_id)
        if self.rehearsal is not None and self._first_step_at is not None:
            elapsed_s = self.clock.monotonic() - self._first_step_at
            self.rehearsal.start_due(elapsed_s, self._others(), self._failover.coordinator.instance_id)
        decision = self._decide()
        target = self._target
        self._set_minimum(target)
        if self.deadline is not None and (decision.launch or not self._drained.issuperset(decision.drain)):
            self.deadline.record(decision)
        for name in decision.drain:
            self._drain(name, decision.causes.get(name) or f"{target} worker(s) are requested")
        if decision.launch:
            self.emit(Notice(message=decision.reasons[-1]))
            self._scale_up(decision)

    @property
    def _target(self) -> int:
        return self.target() if self.deadline is None else self.deadline.target

    def _decide(self) -> ScalingDecision:
        workers, instances = self.registry.workers, self.recipe.instances
        if self.deadline is not None:
            return self.deadline.decide(workers, is_launching=self._is_launching)
        inputs = ScalingInputs(
            target=self.target(),
            now=self.clock.now(),
            base=instances.on_demand_base,
            rounds=instances.rounds,
            is_launching=self._is_launching,
            refusals=self._refusals,
        )
        reserved = NO_RESERVED if self.reserved is None else self.reserved.assess(workers)
        return decide_with_reserved(workers, inputs, reserved)

    def _set_minimum(self, target: int) -> None:
        training = sum(worker.state is WorkerState.TRAINING for worker in self.registry.workers)
        current = self._failover.coordinator.minimum
        minimum = minimum_workers(self.recipe.instances.minimum, target, current=current, training=training)
        self._failover.set_minimum(minimum)

    def _others(self) -> list[str]:
        """Return the training instances except the coordinator, the oldest first."""
        workers = [worker for worker in self.registry.workers if worker.state is WorkerState.TRAINING]
        workers.sort(key=lambda worker: (worker.member.instance.launched_at, worker.instance_id))
        first = self._failover.coordinator.instance_id
        return [worker.instance_id for worker in workers if worker.instance_id != first]

    def _drain(self, name: str, cause: str) -> None:
        if name in self._drained:
            return
        self._drained.add(name)
        self.emit(Notice(message=f"leaves: {cause}", instance_id=name))
        if self.reserved is not None and self.registry.member(name).instance.reservation_id:
            self.reserved.return_instance(name)
        is_arriving = self.registry.state(name) is WorkerState.ARRIVING
        self.registry.mark_leaving(name)
        try:
            self._workers.drain(self.registry.member(name), "resize")
        except DlcloudError as error:
            self.emit(Warned(message=error.message, instance_id=name))
            is_arriving = True
        if is_arriving:
            self._departures.release(name)

    def _scale_up(self, decision: ScalingDecision) -> None:
        """Request instances from a thread, so that the training is followed meanwhile."""
        self._is_launching = True
        connected = [worker.instance_id for worker in self.registry.workers]
        threading.Thread(target=self._grow, args=(decision, connected), name="grow", daemon=True).start()

    def _grow(self, decision: ScalingDecision, connected: Sequence[str]) -> None:
        try:
            grown = self.grow(decision, connected)
            self._inbox.put(ScaleUpFinished(decision=decision, grown=grown))
        except BaseException as error:  # noqa: BLE001 - handled in the controller's own thread
            self._inbox.put(ScaleUpFinished(decision=decision, error=error))
