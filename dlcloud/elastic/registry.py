"""The state of every worker, by the records of agents and workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlcloud.model.cluster import Member
from dlcloud.scheduling.elastic import Worker, WorkerState

WAITING_EVENTS = {"hold", "no_quorum"}

_STATE_AFTER = {
    "notice": WorkerState.LEAVING,
    "drain": WorkerState.LEAVING,
    "drained": WorkerState.LEAVING,
    "rebalance": WorkerState.AT_RISK,
    "joined": WorkerState.TRAINING,
}
"""The state of a worker after an event of `trainer/records.py`."""

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

    def observe(self, instance_id: str, record: Mapping[str, Any]) -> None:
        """Update from a record of an instance; an unknown record changes nothing."""
        match record.get("record"):
            case "start":
                settings = record.get("settings")
                steps = settings.get("steps") if isinstance(settings, dict) else None
                self.steps = steps if isinstance(steps, int) else self.steps
            case "step":
                # The coordinator's file has the steps of the others, too.
                is_own = str(record.get("worker", instance_id)).partition(".")[0] == instance_id
                if is_own:
                    self._advance(instance_id, WorkerState.TRAINING)
                self._observe_step(instance_id if is_own else None, record)
            case "event" if isinstance(record.get("event"), str):
                self._observe_event(instance_id, record)

    def _observe_event(self, instance_id: str, record: Mapping[str, Any]) -> None:
        event, step = record["event"], record.get("step")
        self.done = self.done or event == "done"
        if event in WAITING_EVENTS:
            self.waiting = str(record.get("cause", ""))
        elif event in {"healed", "resumed"} and isinstance(step, int):
            self._steps_held[instance_id] = step
        elif event in {"worker_ended", "killed"} and instance_id in self._steps_held:
            self._steps_held[instance_id] = 0
        elif event == "lighthouse_started":
            self._lighthouses.add(instance_id)
        elif event == "notice":
            self._interrupted.add(instance_id)
        self._advance(instance_id, _STATE_AFTER.get(event, WorkerState.ARRIVING))

    def _observe_step(self, holder: str | None, record: Mapping[str, Any]) -> None:
        step, generation = record.get("step"), record.get("generation")
        if isinstance(generation, int):
            self.generation = max(self.generation, generation)
        if not isinstance(step, int):
            return
        if holder is not None:
            self._steps_held[holder] = step
        if step > self.step:
            self.step, self.waiting = step, ""
            loss, size = record.get("loss"), record.get("world_size")
            self.loss = loss if isinstance(loss, int | float) else None
            self.world_size = size if isinstance(size, int) else self.world_size

    def _advance(self, instance_id: str, state: WorkerState) -> None:
        if instance_id in self._states:
            self._states[instance_id] = max(self._states[instance_id], state, key=_ORDER.index)
