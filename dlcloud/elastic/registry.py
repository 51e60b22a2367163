"""The state of every worker, by the reports of agents and workers."""

from dataclasses import dataclass, field

from dlcloud.elastic.reports import EventReported, StepCommitted, TrainingStarted, WorkerReport
from dlcloud.model.cluster import Member
from dlcloud.scheduling.scaling import Worker, WorkerState
from dlcloud.trainer.records import EventName

WAITING_EVENTS = frozenset({EventName.HOLD, EventName.NO_QUORUM})
"""The workers wait for something instead of taking the next step."""

_STATE_AFTER = {
    EventName.NOTICE: WorkerState.LEAVING,
    EventName.DRAIN: WorkerState.LEAVING,
    EventName.DRAINED: WorkerState.LEAVING,
    EventName.REBALANCE: WorkerState.AT_RISK,
    EventName.JOINED: WorkerState.TRAINING,
}

_ORDER = list(WorkerState)
"""A state never goes back: a step that is recorded after a notice was committed before it."""


@dataclass(slots=True)
class WorkerRegistry:
    """The workers of a run.

    Attributes:
        step: Number of committed steps.
        steps: Steps of the whole run; None until it is known.
        loss: Of the newest step.
        world_size: Workers of the newest step.
        waiting: What the workers wait for instead of taking the next step; empty while they train.
        done: True once the last step is committed.
        generation: The newest one of a control file that a worker has followed.
    """

    step: int = 0
    steps: int | None = None
    loss: float | None = None
    world_size: int = 0
    waiting: str = ""
    done: bool = False
    generation: int = 0
    _members: dict[str, Member] = field(default_factory=dict)
    _states: dict[str, WorkerState] = field(default_factory=dict)
    _steps_held: dict[str, int] = field(default_factory=dict)
    _lighthouses: set[str] = field(default_factory=set)
    _interrupted: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[Worker]:
        """All workers that were ever added."""
        return [Worker(member=member, state=self._states[name]) for name, member in self._members.items()]

    def add(self, member: Member) -> None:
        """Add the worker of a launched instance."""
        self._members.setdefault(member.instance.instance_id, member)
        self._states.setdefault(member.instance.instance_id, WorkerState.ARRIVING)

    def has(self, instance_id: str) -> bool:
        return instance_id in self._members

    @property
    def followed(self) -> list[str]:
        """Ids of the instances whose agents are followed: all that are not gone."""
        return [name for name, state in list(self._states.items()) if state is not WorkerState.GONE]

    def is_followed(self, instance_id: str) -> bool:
        return self._states.get(instance_id, WorkerState.GONE) is not WorkerState.GONE

    def member(self, instance_id: str) -> Member:
        return self._members[instance_id]

    def state(self, instance_id: str) -> WorkerState:
        return self._states[instance_id]

    def step_held(self, instance_id: str) -> int | None:
        """Return the committed steps of the state that a worker holds; None if it never had one.

        It is 0 while a worker is restarted, which then has its checkpoint.
        """
        return self._steps_held.get(instance_id)

    def has_run_lighthouse(self, instance_id: str) -> bool:
        return instance_id in self._lighthouses

    def is_interrupted(self, instance_id: str) -> bool:
        """True if the instance has an interruption notice."""
        return instance_id in self._interrupted

    def mark_leaving(self, instance_id: str) -> None:
        self._advance(instance_id, WorkerState.LEAVING)

    def mark_gone(self, instance_id: str) -> None:
        self._advance(instance_id, WorkerState.GONE)

    def observe(self, instance_id: str, report: WorkerReport) -> None:
        """Update from a report of an instance."""
        match report:
            case TrainingStarted():
                self.steps = self.steps if report.steps is None else report.steps
            case StepCommitted():
                self._observe_step(instance_id, report)
            case EventReported():
                self._observe_event(instance_id, report)

    def _observe_event(self, instance_id: str, event: EventReported) -> None:
        self.done = self.done or event.name is EventName.DONE
        if event.name in WAITING_EVENTS:
            self.waiting = event.cause
        elif event.name in {EventName.HEALED, EventName.RESUMED} and event.step is not None:
            self._steps_held[instance_id] = event.step
        elif event.name in {EventName.WORKER_ENDED, EventName.KILLED} and instance_id in self._steps_held:
            self._steps_held[instance_id] = 0
        elif event.name is EventName.LIGHTHOUSE_STARTED:
            self._lighthouses.add(instance_id)
        elif event.name is EventName.NOTICE:
            self._interrupted.add(instance_id)
        self._advance(instance_id, _STATE_AFTER.get(event.name, WorkerState.ARRIVING))

    def _observe_step(self, instance_id: str, report: StepCommitted) -> None:
        if report.instance_id == instance_id:
            self._advance(instance_id, WorkerState.TRAINING)
            self._steps_held[instance_id] = report.step
        self.generation = max(self.generation, report.generation)
        if report.step > self.step:
            self.step, self.waiting, self.loss = report.step, "", report.loss
            self.world_size = self.world_size if report.world_size is None else report.world_size

    def _advance(self, instance_id: str, state: WorkerState) -> None:
        if instance_id in self._states:
            self._states[instance_id] = max(self._states[instance_id], state, key=_ORDER.index)
