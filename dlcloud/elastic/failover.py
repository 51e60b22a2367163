"""Replace a lost coordinator, so that the run neither splits in two nor loses its state.

Every worker holds the state of the run in memory, so it survives the coordinator, whose loss takes lighthouse
and ledger along. First the lost instance is terminated for certain: two coordinators would be two runs. Then
another on-demand instance becomes the coordinator, with a ledger that begins where the run was. When its
lighthouse is up, the other workers are notified and continue with the state that they hold.

In a detached cluster the coordinator is also the controller: `Standbys` keeps a few instances ready to take
over the control with it (`dlcloud/detached`).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from dlcloud.elastic.agents import Agents
from dlcloud.elastic.registry import (
    Coordinator,
    EventReported,
    Revision,
    StepCommitted,
    TrainingRegistry,
    WorkerReport,
)
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, InstanceError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.planning.resize import coordinator
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance, choose_coordinator
from dlcloud.scheduling.succession import choose_standbys
from dlcloud.trainer.records import EventName

REMIND_S = 60.0
"""Without a coordinator an instance ends itself, unless it has a sign of the controller: `END_ALONE_S`."""

RETRY_S = 3.0
"""Between two attempts to notify an instance, or to terminate one."""

PREPARE_AGAIN_S = 30.0
"""After a standby could not be prepared."""

log = logging.getLogger(__name__)

Prepare = Callable[[Member, int], None]
"""Give an instance all that it takes to control the cluster; its place in the order of succession, from 0."""


class Phase(Enum):
    """The progress of a failover.

    STEADY: there is a coordinator. TERMINATING: the lost one is being terminated. VACANT: no instance can
    replace it yet. STARTING: one is chosen, its lighthouse is not up. RESUMING: the workers are notified; no
    step is committed yet.
    """

    STEADY = "steady"
    TERMINATING = "terminating"
    VACANT = "vacant"
    STARTING = "starting"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTerminated:
    """The lost coordinator is terminated for certain."""


class StateLostError(InstanceError):
    """No instance has the state of a run that has begun: only a checkpoint outside of them has it."""


def require_coordinator(members: Sequence[Member], cluster_name: str) -> Member:
    """Return the instance that coordinates the others.

    Raises:
        InstanceError: None is on-demand.
    """
    first = coordinator(members)
    if first is None:
        raise InstanceError(f"{cluster_name} has no on-demand instance to coordinate the others")
    return first


@dataclass(slots=True, kw_only=True)
class CoordinatorFailover:
    """Keeps a run coordinated.

    Args:
        registry: Knows which agents are followed, and the coordinator, which is set here.
        agents: Their control files tell them of the coordinator.
        terminate: Terminates instances.
        post: Receives the end of the lost coordinator, from another thread.
        restored: Steps of the checkpoint that a run which has not begun continues from.
        term: Of a controller that took over from one that was lost, from 1: its coordinator is a new one.
    """

    registry: TrainingRegistry
    agents: Agents
    terminate: Callable[[Sequence[Member]], object]
    post: Callable[[CoordinatorTerminated], None]
    clock: Clock
    emit: Emit
    restored: int = 0
    term: int = 0
    phase: Phase = field(init=False, default=Phase.STEADY)
    _lost_at: int = field(init=False, default=0)
    _informed: dict[str, Revision] = field(init=False, default_factory=dict)
    _informing: set[tuple[str, Revision]] = field(init=False, default_factory=set)
    _reminded_at: float = field(init=False, default=float("-inf"))
    _has_changed: bool = field(init=False, default=False)  # since the agents were started

    def begin(self, first: Member, minimum: int = 1) -> None:
        """Begin with the present coordinator, or the next one if an earlier controller saw it lost.

        Args:
            first: The coordinator.
            minimum: Workers that every step needs.
        """
        self.registry.coordinator = Coordinator(
            member=first, step=self.registry.step or self.restored, minimum=minimum, least=self.restored
        )
        if self.registry.step or self.term:
            generation = self.registry.generation + max(1, self.term)
            self.registry.coordinator = replace(
                self.registry.coordinator, generation=generation, least=self._newest_step()
            )
            self._lost_at = self.registry.step
            self._has_changed = True
            has_started = self.registry.has_run_lighthouse(self.registry.coordinator.instance_id)
            self.phase = Phase.RESUMING if has_started else Phase.STARTING

    def handle_loss(self) -> None:
        """Terminate the coordinator, which is lost.

        Raises:
            StateLostError: No other instance has the state of a run that has begun, or continues from a
                checkpoint.
        """
        lost, self._lost_at = self.registry.coordinator.instance_id, max(self.registry.step, self.restored)
        self._require_state()
        text = f"was the coordinator, and is lost; {len(self._holders())} workers hold the state of step"
        self.emit(Warned(message=f"{text} {self._newest_step()} of {self._lost_at}", instance_id=lost))
        self.phase = Phase.TERMINATING
        member = self.registry.coordinator.member
        threading.Thread(target=self._terminate, args=(member,), name=f"end {lost}", daemon=True).start()

    def handle_departure(self) -> None:
        """Check the state after another instance has gone: during a failover its state may be missing.

        Raises:
            StateLostError: It was the last one with the state.
        """
        if self.phase is Phase.STEADY:
            return
        self._require_state()
        if self.phase is Phase.RESUMING:
            self._resume()

    def set_minimum(self, minimum: int) -> None:
        """Change the number of workers that every step needs."""
        if minimum != self.registry.coordinator.minimum:
            self._has_changed, self.registry.coordinator = (
                True,
                replace(self.registry.coordinator, minimum=minimum),
            )
            self.notify_all()

    def handle_terminated(self) -> None:
        """Look for another coordinator from now on."""
        self.phase = Phase.VACANT

    def appoint(self) -> None:
        """Make an on-demand instance the coordinator, where one is missing and one is there."""
        member = choose_coordinator(self.registry.instances) if self.phase is Phase.VACANT else None
        if member is None:
            return
        self.registry.coordinator = replace(
            self.registry.coordinator,
            member=member,
            generation=max(self.registry.coordinator.generation, self.registry.generation) + 1,
            step=self._lost_at,
            least=self._newest_step(),
        )
        self._has_changed, self.phase = True, Phase.STARTING
        name = self.registry.coordinator.instance_id
        self.emit(Info(message="is the coordinator from now on", instance_id=name))
        self.notify_all()

    def observe(self, instance_id: str, reports: Sequence[WorkerReport]) -> None:
        """Advance the failover by new reports of an instance; notify it if it may have missed a change."""
        if not self._has_changed:
            return
        coordinator, phase = self.registry.coordinator, self.phase
        has_started = any(_is_start(report) for report in reports)
        if phase is Phase.STARTING and instance_id == coordinator.instance_id and has_started:
            self._resume()
        if phase is Phase.RESUMING and any(_is_step(report, coordinator.generation) for report in reports):
            # Now a checkpoint is as good as a peer's state: if all workers are lost, no worker waits for one.
            self.phase, self.registry.coordinator = Phase.STEADY, replace(coordinator, least=0)
            self.notify_all()
        self._notify(instance_id)

    def notify_all(self) -> None:
        """Notify every instance that may have missed a change."""
        for name in self.registry.followed:
            self._notify(name)

    def remind(self) -> None:
        """Keep the instances from ending themselves while there is no coordinator."""
        now = self.clock.monotonic()
        if self.phase is Phase.STEADY or now - self._reminded_at < REMIND_S:
            return
        self._reminded_at = now
        for name in self.registry.followed:
            member = self.registry.member(name)
            threading.Thread(target=self._touch, args=(member,), name=f"remind {name}", daemon=True).start()

    def _touch(self, member: Member) -> None:
        try:
            self.agents.remind(member)
        except DlcloudError as error:
            log.warning("cannot remind %s: %s", member.instance.instance_id, error.message)

    def _resume(self) -> None:
        least = self._newest_step()
        if self.phase is not Phase.RESUMING:
            repeated = self._lost_at - least
            loss = f"{repeated} step(s) are taken again" if repeated else "no step is lost"
            self.emit(Info(message=f"the training continues from step {least}: {loss}"))
        self.phase, self.registry.coordinator = (
            Phase.RESUMING,
            replace(self.registry.coordinator, least=least),
        )
        self.notify_all()

    def _holders(self) -> list[str]:
        return [name for name in self.registry.followed if self.registry.step_held(name) is not None]

    def _newest_step(self) -> int:
        return max((self.registry.step_held(name) or 0 for name in self._holders()), default=0)

    def _require_state(self) -> None:
        if self._lost_at and not self._holders():
            raise StateLostError(
                f"the coordinator {self.registry.coordinator.instance_id} is gone, and no other instance "
                f"has the model's state: the {self._lost_at} steps are lost",
                "dlcloud up RECIPE trains from the start; with more instances such a loss is less likely",
            )

    def _terminate(self, member: Member) -> None:
        """Repeat until the instance is terminated: before that no other one may coordinate."""
        while True:
            try:
                self.terminate([member])
            except DlcloudError as error:
                self.emit(Warned(message=error.message, instance_id=member.instance.instance_id))
                self.clock.sleep(RETRY_S)
            else:
                self.post(CoordinatorTerminated())
                return

    def _notify(self, name: str) -> None:
        """Inform an instance from a thread: one that does not answer must not delay the others."""
        coordinator = self.registry.coordinator
        revision = coordinator.revision
        is_informed = self._informed.get(name) == revision or (name, revision) in self._informing
        is_ready = self.phase in {Phase.RESUMING, Phase.STEADY}
        is_first = self.phase is Phase.STARTING and name == coordinator.instance_id
        if self._has_changed and not is_informed and (is_ready or is_first):
            self._informing.add((name, revision))
            arguments = (self.registry.member(name), coordinator)
            threading.Thread(target=self._inform, args=arguments, name=f"inform {name}", daemon=True).start()

    def _inform(self, member: Member, coordinator: Coordinator) -> None:
        name = member.instance.instance_id
        while self.registry.coordinator == coordinator and self.registry.is_followed(name):
            try:
                # Where no agent is there yet, its first record leads here again.
                if self.agents.write_control(member):
                    self._informed[name] = coordinator.revision
                break
            except DlcloudError as error:
                log.warning("cannot write the control file of %s: %s", name, error.message)
                self.clock.sleep(RETRY_S)
        self._informing.discard((name, coordinator.revision))


def _is_start(report: WorkerReport) -> bool:
    return isinstance(report, EventReported) and report.name is EventName.LIGHTHOUSE_STARTED


def _is_step(report: WorkerReport, generation: int) -> bool:
    """True for a step that was committed under a coordinator of this generation."""
    return isinstance(report, StepCommitted) and report.generation == generation


@dataclass(slots=True, kw_only=True)
class Standbys:
    """Prepares instances from a thread, and again whenever the workers change.

    Args:
        prepare: May raise DlcloudError; it is called again then.
    """

    prepare: Prepare
    clock: Clock
    emit: Emit
    _ready: tuple[str, ...] = field(default=(), init=False)
    _revision: tuple[tuple[str, ...], frozenset[str]] | None = field(default=None, init=False)
    _retry_at: float = field(default=float("-inf"), init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def update(self, workers: Sequence[TrainingInstance], controller: str) -> None:
        """Prepare what is missing, if nothing is being prepared already."""
        chosen = choose_standbys(workers, controller, self._ready)
        present = frozenset(w.instance_id for w in workers if w.state is not InstanceStage.ARRIVING)
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or self._revision == (chosen, present) or self.clock.monotonic() < self._retry_at:
            return
        members = [worker.member for name in chosen for worker in workers if worker.instance_id == name]
        arguments = (members, (chosen, present))
        self._thread = threading.Thread(target=self._prepare, args=arguments, name="standbys", daemon=True)
        self._thread.start()

    def _prepare(self, members: Sequence[Member], revision: tuple[tuple[str, ...], frozenset[str]]) -> None:
        for place, member in enumerate(members):
            name = member.instance.instance_id
            try:
                self.prepare(member, place)
            except DlcloudError as error:
                self._retry_at = self.clock.monotonic() + PREPARE_AGAIN_S
                self.emit(Warned(message=f"cannot stand by: {error.message}", instance_id=name))
                return
            if name not in self._ready:
                message = "stands by: it takes control if the coordinator is lost"
                self.emit(Info(message=message, instance_id=name))
                self._ready = (*self._ready, name)
        self._ready, self._revision = revision[0], revision
