"""Run an elastic training from its first step to its last, and replace the instances that it loses.

The controller is a loop over one scaler: take in what agents and requests report, then act. It delays no
step. Whatever takes time has its own thread, which posts to the inbox when it has ended; only the loop's
thread changes what is known of the training. The workers agree on each step among themselves: without a
controller the training continues, and is not replaced.

The way of an interruption, in the order of the methods below:

1. The notice. An agent has read it from the metadata service and recorded it (`trainer/agent.py`); the
   thread that follows the agent posts it. The instance trains on until shortly before its end, but it does
   not stay, and no newcomer copies from it.
2. The request. The scaler misses a worker that stays, and decides which instances are requested. They are
   planned from today's offers and launched from a thread, while the others train on.
3. The replacement. It is set up from a peer, and its agent is started.
4. Joined. Its worker takes the state from a peer and takes part in the next step.

Meanwhile the interrupted worker leaves after a step, and its instance is terminated, or left to EC2 where
that is free. If it was the coordinator, `failover.py` appoints another one first. No instance that was
launched here may run on without an agent: one whose worker has left or failed is terminated.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from dlcloud.elastic.agents import AgentExited, Agents, ReportsReceived
from dlcloud.elastic.failover import (
    CoordinatorFailover,
    CoordinatorTerminated,
    Phase,
    Prepare,
    Standbys,
)
from dlcloud.elastic.registry import (
    EventReported,
    StepCommitted,
    TrainingProgress,
    TrainingRegistry,
    WorkerReport,
)
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CloudError, CredentialsError, DlcloudError, RemoteCommandError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Market
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.deadline_scaling import limit_plan
from dlcloud.scheduling.scaling import (
    EC2_ENDS_WITHIN,
    InstanceStage,
    ScalingDecision,
    TrainingInstance,
    choose_coordinator,
    is_free_if_ec2_ends_it,
    minimum_workers,
)
from dlcloud.trainer.records import EventName

TICK_S = 0.25
LINGER_S = 30.0
"""How long after the last step the workers may take to end and to copy their files home."""

MOST_FAILURES = 3
"""If this many workers in a row fail before a step, it is the program's fault, not their instances'."""

SETUP_ERRORS = (CredentialsError, RemoteCommandError)
"""Errors of a set-up that say nothing about its instance."""

RESIZE = "resize"
"""The cause that a worker records: it is not wanted any more."""


class Scaler(Protocol):
    """Chooses the size of one training: `size_scaler.py` keeps a size, `deadline_scaler.py` a deadline."""

    @property
    def target(self) -> int:
        """The workers that are requested now."""

    def decide(self, workers: Sequence[TrainingInstance], *, is_launching: bool) -> ScalingDecision:
        """Return which instances are requested and which workers leave now.

        Args:
            workers: All that the run has had.
            is_launching: True while a request for instances is under way.
        """

    def record(self, decision: ScalingDecision) -> None:
        """Remember a decision that is carried out; it may come again while workers leave."""

    def handle_request(self, ended: "RequestEnded") -> None:
        """Take into account what a request gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """A request for instances has ended.

    Attributes:
        decision: What was requested.
        new: The instances that it gave.
        refusals: Of pools that gave none, or too few.
        error: Why it could not be made; None if it was.
    """

    decision: ScalingDecision
    new: Sequence[Member] = ()
    refusals: Sequence[PoolRefusal] = ()
    error: BaseException | None = None

    @property
    def final_error(self) -> CloudError | None:
        """The refusal as denied or invalid, which no waiting can change; None without one."""
        errors = [self.error, *(refusal.error for refusal in self.refusals)]
        return next((error for error in errors if isinstance(error, CloudError) and error.is_final), None)


Inbox = queue.Queue[ReportsReceived | AgentExited | RequestEnded | CoordinatorTerminated]
"""What threads report to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingControl:
    """How a training is controlled.

    Attributes:
        prepare: Prepares an instance that stands by; None where no instance of the cluster controls it.
        term: In which an instance of the cluster took over; 0 for the first controller.
        rehearsal: The incidents of the recipe.
        may_relaunch: If all instances are lost, others are launched where checkpoints are in S3. Not for a
            controller that runs on one of them.
        elsewhere: Returns what spot costs in the Regions to which a training with a deadline may move now.
    """

    prepare: Prepare | None = None
    term: int = 0
    rehearsal: Rehearsal | None = None
    may_relaunch: bool = False
    elsewhere: Callable[[], Mapping[str, float]] = dict


@dataclass(slots=True, kw_only=True)
class Controller:
    """Keeps one training going.

    Args:
        launcher: Of the cluster.
        recipe: The training's.
        plan: With which the instances were launched.
        registry: What is known of the training.
        agents: The agents on its instances.
        scaler: Decides which instances are requested, and which workers leave.
        inbox: To which `agents` post.
        control: How it is controlled.
        restored: Committed steps of the checkpoint that the workers continue from.
    """

    launcher: Launcher
    recipe: Recipe
    plan: Plan
    registry: TrainingRegistry
    agents: Agents
    scaler: Scaler
    inbox: Inbox
    control: TrainingControl
    restored: int = 0
    failover: CoordinatorFailover = field(init=False)
    _progress: TrainingProgress = field(init=False)
    _standbys: Standbys | None = field(init=False, default=None)
    _request: threading.Thread | None = field(init=False, default=None)  # under way, or not handled yet
    _drained: set[str] = field(init=False, default_factory=set)
    _release_at: dict[str, datetime] = field(init=False, default_factory=dict)
    _failures: int = field(init=False, default=0)  # of workers, since the last step
    _done_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        launcher, control = self.launcher, self.control
        clock, emit = launcher.clock, launcher.emit
        self.failover = CoordinatorFailover(
            registry=self.registry,
            agents=self.agents,
            terminate=launcher.shrink,
            post=self.inbox.put,
            clock=clock,
            emit=emit,
            restored=self.restored,
            term=control.term,
        )
        self._progress = TrainingProgress(registry=self.registry, clock=clock, emit=emit)
        # With checkpoints in S3 the instances have a role already, and the next `up` has a checkpoint.
        # An agent in a container sees neither the controller's process nor its program.
        if control.prepare and self.recipe.checkpoints is None and not self.recipe.setup.image:
            self._standbys = Standbys(prepare=control.prepare, clock=clock, emit=emit)

    def run(self, members: Sequence[Member], first: Member) -> None:
        """Train to the last step.

        Args:
            members: The instances that are up; agents that run on them already are followed.
            first: The one of them that coordinates the others.

        Raises:
            StateLostError: The coordinator is gone, and no other instance has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        members = self._release_unknown(members, first) if self.agents.has_taken_over else members
        for member in members:
            self._add(member)
        self.failover.begin(first, minimum_workers(self.recipe.instances.minimum, self.scaler.target))
        for member in members:
            self.agents.serve(member)
        self.failover.notify_all()
        while not self._is_over():
            self._handle_inbox()
            self._act()

    def abandon(self) -> None:
        """Follow no worker any more, and wait for the request under way: all instances are to end."""
        if self._request is not None:
            self._request.join()  # what it launches is then known to the store
        for name in self.registry.followed:
            self.registry.mark_gone(name)

    def _release_unknown(self, members: Sequence[Member], first: Member) -> list[Member]:
        """Terminate the instances that the lost controller was setting up: how far they were is not known."""
        kept = [member for member in members if member is first or self.agents.has_run(member)]
        for member in members:
            if member not in kept:
                self.registry.add(member)
                self._release(member.instance.instance_id)
                self.registry.mark_gone(member.instance.instance_id)
        return kept

    def _add(self, member: Member) -> None:
        self.registry.add(member)
        for report in self.agents.read_past(member):
            self._observe(member.instance.instance_id, report)

    def _is_over(self) -> bool:
        if not self.registry.done:
            return False
        now = self.launcher.clock.monotonic()
        self._done_at = now if self._done_at is None else self._done_at
        ended = {InstanceStage.ARRIVING, InstanceStage.GONE}
        is_empty = all(worker.state in ended for worker in self.registry.instances)
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
                case AgentExited():
                    self._handle_exit(item)
                case RequestEnded():
                    self._handle_request(item)
                case CoordinatorTerminated():
                    self.failover.handle_terminated()

    # 1. The notice.

    def _handle_reports(self, received: ReportsReceived) -> None:
        for report in received.reports:
            self._observe(received.instance_id, report)
            self._progress.show_event(received.instance_id, report)
            if isinstance(report, StepCommitted):
                self._failures = 0
                if self.control.rehearsal is not None:
                    self.control.rehearsal.begin(self.launcher.clock.monotonic())
        self.failover.observe(received.instance_id, received.reports)
        self._progress.show_step()

    def _observe(self, name: str, report: WorkerReport) -> None:
        if isinstance(report, EventReported) and report.name is EventName.NOTICE:
            # All that a notice means here: the scaler counts on the instance no longer, and no newcomer
            # copies from it. Its agent lets the worker leave in time, whether this controller lives or not.
            self.registry.mark_interrupted(name)
            self.agents.forget_peer(name)
        else:
            self.registry.observe(name, report)

    # 2. The request.

    def _act(self) -> None:
        """Start incidents, and carry out what the scaler decides."""
        self.failover.remind()
        self._release_overdue()
        if self.registry.done or self.failover.phase is Phase.TERMINATING:
            return
        self.failover.appoint()
        workers, first = self.registry.instances, self.registry.coordinator.instance_id
        if self._standbys is not None and self.failover.phase is Phase.STEADY:
            self._standbys.update(workers, first)
        if self.control.rehearsal is not None:
            self.control.rehearsal.start_due(self.launcher.clock.monotonic(), workers, first)
        decision = self.scaler.decide(self.registry.instances, is_launching=self._request is not None)
        target = self.scaler.target
        self._set_minimum(target)
        if decision.launch or not self._drained.issuperset(decision.drain):
            self.scaler.record(decision)
        for name in decision.drain:
            self._drain(name, decision.causes.get(name) or f"{target} worker(s) are requested")
        if decision.launch:
            self.launcher.emit(Info(message=decision.reasons[-1]))
            connected = [worker.instance_id for worker in self.registry.instances]
            self._request = threading.Thread(
                target=self._make_request, args=(decision, connected), name="request", daemon=True
            )
            self._request.start()

    def _set_minimum(self, target: int) -> None:
        training = sum(worker.state is InstanceStage.TRAINING for worker in self.registry.instances)
        current = self.registry.coordinator.minimum
        minimum = minimum_workers(self.recipe.instances.minimum, target, current=current, training=training)
        self.failover.set_minimum(minimum)

    def _make_request(self, decision: ScalingDecision, connected: Sequence[str]) -> None:
        """Make a request, from its thread; the instances of `connected` are there already."""
        try:
            launched = self._launch(decision, connected)
        except BaseException as error:  # noqa: BLE001 - raised in the controller's own thread
            self.inbox.put(RequestEnded(decision=decision, error=error))
            return
        new = [member for member in launched.members if member.instance.instance_id not in connected]
        self.inbox.put(RequestEnded(decision=decision, new=new, refusals=launched.refusals))

    def _launch(self, decision: ScalingDecision, connected: Sequence[str]) -> LaunchedMembers:
        """Plan what a decision requests, from its pools alone, and launch it."""
        members = self.launcher.reconcile()
        size = len(members) + decision.launch
        plan = self.launcher.plan(self.recipe, cidrs=self.plan.cidrs, size=size, members=members)
        if decision.reserved_only:
            plan = replace(plan, rounds=(), max_count=len(members) + plan.reserved_count)
        elif decision.on_demand_only:
            plan = limit_plan(plan, Market.ON_DEMAND, self.recipe.instances.types, size)
        elif decision.market is not None:
            plan = limit_plan(plan, decision.market, decision.pools, size)
        return self.launcher.grow(plan, connected=connected)

    # 3. The replacement; its agent then reports, and with its first step it has joined.

    def _handle_request(self, ended: RequestEnded) -> None:
        self._request = None
        _raise_bug(ended.error)
        for member in ended.new:
            self._add(member)
        self.failover.appoint()
        for member in ended.new:
            self.agents.serve(member)
        if ended.final_error is not None and choose_coordinator(self.registry.instances) is None:
            raise ended.final_error
        self.scaler.handle_request(ended)

    # Workers that leave, or fail.

    def _drain(self, name: str, cause: str) -> None:
        """Ask a worker to leave, once; one that has not trained yet has nothing to finish."""
        if name in self._drained:
            return
        self._drained.add(name)
        self.launcher.emit(Info(message=f"leaves: {cause}", instance_id=name))
        is_arriving = self.registry.state(name) is InstanceStage.ARRIVING
        self.registry.mark_leaving(name)
        try:
            self.agents.drain(self.registry.member(name), RESIZE)
        except DlcloudError as error:
            self.launcher.emit(Warned(message=error.message, instance_id=name))
            is_arriving = True
        if is_arriving:
            self._release(name)

    def _handle_exit(self, exited: AgentExited) -> None:
        name = exited.instance_id
        self.registry.mark_gone(name)
        _raise_bug(exited.error)
        if self.registry.done or exited.has_finished:
            return
        is_coordinator = name == self.registry.coordinator.instance_id
        self._judge(exited, is_first=is_coordinator and not self.registry.step)
        if is_coordinator:
            self.failover.handle_loss()
        else:
            self._release_departed(name)
            self.failover.handle_departure()

    def _judge(self, exited: AgentExited, *, is_first: bool) -> None:
        """Warn of a worker that failed; its instance is replaced.

        Args:
            exited: How it ended.
            is_first: True for that of the coordinator before the first step: if its program or its set-up
                fails, those of every instance do, and replacing it would never end.

        Raises:
            CredentialsError, RemoteCommandError: It is not the fault of the instance.
        """
        if exited.error is not None:
            if is_first and isinstance(exited.error, SETUP_ERRORS):
                raise exited.error
            self.launcher.emit(Warned(message=str(exited.error), instance_id=exited.instance_id))
        if exited.run is None or exited.is_drained:
            return
        self._failures += 1
        if self._failures >= (1 if is_first else MOST_FAILURES):
            raise self.agents.error_of(exited.run)
        message = "its worker failed; replacing the instance"
        self.launcher.emit(Warned(message=message, instance_id=exited.instance_id))

    def _release_departed(self, name: str) -> None:
        """Terminate an instance that has no worker any more, unless it is free if EC2 itself ends it."""
        instance, now = self.registry.member(name).instance, self.launcher.clock.now()
        if not self.registry.is_interrupted(name) or not is_free_if_ec2_ends_it(instance, now):
            self._release(name)
            return
        self._release_at[name] = now + EC2_ENDS_WITHIN
        message = "is left to EC2, which terminates it within two minutes: its first hour is then free"
        self.launcher.emit(Info(message=message, instance_id=name))

    def _release_overdue(self) -> None:
        """Terminate the instances that EC2 should have ended."""
        now = self.launcher.clock.now()
        for name in [name for name, at in self._release_at.items() if at <= now]:
            del self._release_at[name]
            self._release(name)

    def _release(self, name: str) -> None:
        """Terminate an instance from a thread: its worker has left, and it is still billed."""
        member = self.registry.member(name)
        threading.Thread(target=self._terminate, args=(member,), name=f"end {name}", daemon=True).start()

    def _terminate(self, member: Member) -> None:
        try:
            self.launcher.shrink([member])
        except DlcloudError as error:
            self.launcher.emit(Warned(message=error.message, instance_id=member.instance.instance_id))


def _raise_bug(error: BaseException | None) -> None:
    """Raise here what is no failure of the outside world, but a fault of a thread."""
    if error is not None and not isinstance(error, DlcloudError):
        raise error
