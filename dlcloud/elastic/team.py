"""Where each worker stands, by what the agents and the workers report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlcloud.core.cluster import Member
from dlcloud.core.elastic import Worker, WorkerState

_MOVES = {
    "notice": WorkerState.LEAVING,
    "drain": WorkerState.LEAVING,
    "drained": WorkerState.LEAVING,
    "rebalance": WorkerState.AT_RISK,
    "joined": WorkerState.TRAINING,
}
"""What an event of `trainer/records.py` makes of who reports it."""

_WAY = [
    WorkerState.ARRIVING,
    WorkerState.TRAINING,
    WorkerState.AT_RISK,
    WorkerState.LEAVING,
    WorkerState.GONE,
]
"""Nobody goes back on it: a step that is reported after a notice was committed before it."""


@dataclass(slots=True)
class WorkerRegistry:
    """The instances of a run.

    Attributes:
        step: Newest step that is known to be committed.
        steps: How many there are to be; None where that is not known yet.
        loss: At that step.
        world_size: How many workers took it.
        waiting: What the workers wait for instead of taking the next step; empty while they train.
        done: Whether the last step is committed.
        generation: The newest that a worker has gone by.
    """

    step: int = 0
    steps: int | None = None
    loss: float | None = None
    world_size: int = 0
    waiting: str = ""
    done: bool = False
    generation: int = 0
    _members: dict[str, Member] = field(default_factory=dict)
    _standings: dict[str, WorkerState] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _coordinated: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[Worker]:
        """Return everyone who was ever admitted."""
        return [Worker(member=each, standing=self._standings[name]) for name, each in self._members.items()]

    def admit(self, member: Member) -> None:
        """Count an instance that was launched."""
        self._members.setdefault(member.instance.instance_id, member)
        self._standings.setdefault(member.instance.instance_id, WorkerState.ARRIVING)

    def knows(self, instance_id: str) -> bool:
        """Tell whether an instance was ever admitted."""
        return instance_id in self._members

    def member(self, instance_id: str) -> Member:
        """Return an instance that was admitted."""
        return self._members[instance_id]

    def standing(self, instance_id: str) -> WorkerState:
        """Return where the worker on an instance stands."""
        return self._standings[instance_id]

    def held(self, instance_id: str) -> int | None:
        """Return how many steps the state on an instance has behind it; None where it never had any.

        It is 0 while a worker is started anew, which then has its checkpoint.
        """
        return self._held.get(instance_id)

    def coordinated(self, instance_id: str) -> bool:
        """Tell whether a lighthouse was ever started on an instance."""
        return instance_id in self._coordinated

    def leave(self, instance_id: str) -> None:
        """Count a worker as leaving: it was told to."""
        self._move(instance_id, WorkerState.LEAVING)

    def lose(self, instance_id: str) -> None:
        """Count a worker as gone."""
        self._move(instance_id, WorkerState.GONE)

    def take(self, instance_id: str, record: Mapping[str, Any]) -> None:
        """Learn from a record of an instance; what is not understood says nothing."""
        match record.get("record"):
            case "start":
                settings = record.get("settings")
                steps = settings.get("steps") if isinstance(settings, dict) else None
                self.steps = steps if isinstance(steps, int) else self.steps
            case "step":
                self._move(instance_id, WorkerState.TRAINING)
                self._step(instance_id, record)
            case "event":
                event = record.get("event")
                self.done = self.done or event == "done"
                if isinstance(event, str):
                    if event in {"hold", "no_quorum"}:
                        self.waiting = str(record.get("cause", ""))
                    self._hold(instance_id, event, record.get("step"))
                    self._move(instance_id, _MOVES.get(event, WorkerState.ARRIVING))

    def _hold(self, instance_id: str, event: str, step: object) -> None:
        """Learn what an event says of the state on an instance."""
        if event in {"healed", "resumed"} and isinstance(step, int):
            self._held[instance_id] = step
        elif event in {"worker_ended", "killed"} and instance_id in self._held:
            self._held[instance_id] = 0
        elif event == "lighthouse_started":
            self._coordinated.add(instance_id)

    def _step(self, instance_id: str, record: Mapping[str, Any]) -> None:
        step, generation = record.get("step"), record.get("generation")
        if isinstance(generation, int):
            self.generation = max(self.generation, generation)
        if not isinstance(step, int):
            return
        self._held[instance_id] = step
        if step > self.step:
            self.step, self.waiting = step, ""
            loss, size = record.get("loss"), record.get("world_size")
            self.loss = loss if isinstance(loss, int | float) else None
            self.world_size = size if isinstance(size, int) else self.world_size

    def _move(self, instance_id: str, to: WorkerState) -> None:
        if instance_id in self._standings:
            self._standings[instance_id] = max(self._standings[instance_id], to, key=_WAY.index)
