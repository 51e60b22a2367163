"""Run an elastic training from its first step to its last, and keep it at the size that its scaler wants.

A loop: take in what workers and requests report, then act. It delays no step: whatever takes time has a
thread of its own, and reports when it has ended.
"""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlcloud.elastic.departures import Departures
from dlcloud.elastic.failover import CoordinatorFailover, CoordinatorTerminated, Phase
from dlcloud.elastic.failures import FailureCount
from dlcloud.elastic.progress import TrainingProgress
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.reports import StepCommitted
from dlcloud.elastic.requests import InstanceRequests
from dlcloud.elastic.scaler import RequestEnded, Scaler
from dlcloud.elastic.standbys import Standbys
from dlcloud.elastic.workers import ReportsReceived, WorkerExited, Workers
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError
from dlcloud.scheduling.scaling import ScalingDecision, WorkerState, choose_coordinator, minimum_workers

TICK_S = 0.25
LINGER_S = 30.0
"""How long after the last step the workers may take to end and to copy their files home."""

Inbox = queue.Queue[ReportsReceived | WorkerExited | RequestEnded | CoordinatorTerminated]
"""What threads report to the controller."""


@dataclass(slots=True, kw_only=True)
class Controller:
    """Keeps one training going.

    Args:
        scaler: Decides which instances are requested, and which workers leave.
        registry: The workers; all collaborators share it.
        minimum: The recipe's fewest workers of a step.
        rehearsal: The incidents of the recipe.
        standbys: Keeps instances ready to take over, where one of the cluster's own controls it.
    """

    scaler: Scaler
    registry: WorkerRegistry
    workers: Workers
    failover: CoordinatorFailover
    departures: Departures
    requests: InstanceRequests
    failures: FailureCount
    progress: TrainingProgress
    inbox: Inbox
    clock: Clock
    minimum: int
    rehearsal: Rehearsal | None = None
    standbys: Standbys | None = None
    _done_at: float | None = field(init=False, default=None)

    def run(self, members: Sequence[Member], first: Member) -> None:
        """Train to the last step.

        Args:
            members: The instances that are up; agents that run on them already are followed.
            first: The one of them that coordinates the others.

        Raises:
            StateLostError: The coordinator is gone, and no other instance has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        members = self._release_unknown(members, first) if self.workers.has_taken_over else members
        for member in members:
            self._add(member)
        self.failover.begin(first, minimum_workers(self.minimum, self.scaler.target))
        for member in members:
            self.workers.serve(member)
        self.failover.notify_all()
        while not self._is_over():
            self._handle_inbox()
            self._act()

    def abandon(self) -> None:
        """Follow no worker any more, and wait for the request under way: all instances are to end."""
        self.requests.join()
        for name in self.registry.followed:
            self.registry.mark_gone(name)

    def _release_unknown(self, members: Sequence[Member], first: Member) -> list[Member]:
        """Terminate the instances that the lost controller was setting up: how far they were is not known."""
        kept = [member for member in members if member is first or self.workers.has_run(member)]
        for member in members:
            if member not in kept:
                self.registry.add(member)
                self.departures.release(member.instance.instance_id)
                self.registry.mark_gone(member.instance.instance_id)
        return kept

    def _add(self, member: Member) -> None:
        name = member.instance.instance_id
        self.registry.add(member)
        for report in self.workers.read_past(member):
            self.registry.observe(name, report)
            self.scaler.observe(report)

    def _is_over(self) -> bool:
        if not self.registry.done:
            return False
        now = self.clock.monotonic()
        self._done_at = now if self._done_at is None else self._done_at
        ended = {WorkerState.ARRIVING, WorkerState.GONE}
        is_empty = all(worker.state in ended for worker in self.registry.workers)
        return is_empty or now - self._done_at > LINGER_S

    def _handle_inbox(self) -> None:
        """Wait for an item at most a tick, then handle all that are there."""
        try:
            items = [self.inbox.get(timeout=TICK_S)]
        except queue.Empty:
            return
        while not self.inbox.empty():
            items.append(self.inbox.get())
        for item in items:
            match item:
                case ReportsReceived():
                    self._handle_reports(item)
                case WorkerExited():
                    self._handle_exit(item)
                case RequestEnded():
                    self._handle_request(item)
                case CoordinatorTerminated():
                    self.failover.handle_terminated()

    def _handle_reports(self, received: ReportsReceived) -> None:
        for report in received.reports:
            self.registry.observe(received.instance_id, report)
            self.scaler.observe(report)
            self.progress.show_event(received.instance_id, report)
            if isinstance(report, StepCommitted):
                self.failures.reset()
                if self.rehearsal is not None:
                    self.rehearsal.begin(self.clock.monotonic())
        self.failover.observe(received.instance_id, received.reports)
        self.progress.show_step()

    def _handle_exit(self, exited: WorkerExited) -> None:
        name = exited.instance_id
        self.registry.mark_gone(name)
        _raise_bug(exited.error)
        if self.registry.done or exited.has_finished:
            return
        is_coordinator = name == self.failover.coordinator.instance_id
        self.failures.judge(exited, is_first=is_coordinator and not self.registry.step)
        if is_coordinator:
            self.failover.handle_loss()
        else:
            self.departures.release_departed(name)
            self.failover.handle_departure()

    def _handle_request(self, ended: RequestEnded) -> None:
        self.requests.close()
        _raise_bug(ended.error)
        for member in ended.new:
            self._add(member)
        self.failover.appoint()
        for member in ended.new:
            self.workers.serve(member)
        if ended.final_error is not None and choose_coordinator(self.registry.workers) is None:
            raise ended.final_error
        self.scaler.handle_request(ended)

    def _act(self) -> None:
        """Start incidents, and do what the scaler decides."""
        self.failover.remind()
        self.departures.release_overdue()
        if self.registry.done or self.failover.phase is Phase.TERMINATING:
            return
        self.failover.appoint()
        workers, first = self.registry.workers, self.failover.coordinator.instance_id
        if self.standbys is not None and self.failover.phase is Phase.STEADY:
            self.standbys.update(workers, first)
        if self.rehearsal is not None:
            self.rehearsal.start_due(self.clock.monotonic(), workers, first)
        self._carry_out(self.scaler.decide(self.registry.workers, is_launching=self.requests.is_open))

    def _carry_out(self, decision: ScalingDecision) -> None:
        """Let workers leave, and request instances."""
        target = self.scaler.target
        self._set_minimum(target)
        if decision.launch or self.departures.is_new(decision.drain):
            self.scaler.record(decision)
        for name in decision.drain:
            self.departures.begin(name, decision.causes.get(name) or f"{target} worker(s) are requested")
        if decision.launch:
            connected = [worker.instance_id for worker in self.registry.workers]
            self.requests.request_instances(decision, connected)

    def _set_minimum(self, target: int) -> None:
        training = sum(worker.state is WorkerState.TRAINING for worker in self.registry.workers)
        current = self.failover.coordinator.minimum
        self.failover.set_minimum(minimum_workers(self.minimum, target, current=current, training=training))


def _raise_bug(error: BaseException | None) -> None:
    """Raise here what is no failure of the outside world, but a fault of a thread."""
    if error is not None and not isinstance(error, DlcloudError):
        raise error
