"""The incidents of a rehearsal: interruptions, sudden ends, a lack of capacity, each at its time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dlcloud.model.errors import InstanceGoneError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.recipe.recipe import Incident
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance


class RehearsalFaults(Protocol):
    """Injects faults into the local cloud."""

    def interrupt(self, instance_id: str, grace_s: float) -> None:
        """Give a spot interruption notice, and terminate the instance after the grace.

        Raises:
            InstanceGoneError: It ended already.
        """

    def set_capacity(self, instance_type: str, count: int) -> None:
        """Limit the number of running instances of a type."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """Starts incidents, each once.

    Args:
        types: The recipe's instance types.
    """

    incidents: Sequence[Incident]
    types: Sequence[str]
    faults: RehearsalFaults
    emit: Emit
    _began_s: float | None = None
    _started: set[int] = field(default_factory=set)

    def begin(self, now_s: float) -> None:
        """Begin with the first step; the later ones change nothing."""
        self._began_s = now_s if self._began_s is None else self._began_s

    def start_due(self, now_s: float, workers: Sequence[TrainingInstance], coordinator: str) -> None:
        """Start the incidents that are due.

        Args:
            now_s: Seconds on the clock of `begin`.
            workers: All that the run has had.
            coordinator: The coordinator's id.
        """
        if self._began_s is None:
            return
        for number, incident in enumerate(self.incidents):
            if number not in self._started and incident.after <= now_s - self._began_s:
                self._started.add(number)
                self._start(incident, _list_others(workers, coordinator), coordinator)

    def _start(self, incident: Incident, others: Sequence[str], coordinator: str) -> None:
        if incident.capacity is not None:
            for name in self.types:
                self.faults.set_capacity(name, incident.capacity)
            types = ", ".join(self.types)
            self.emit(Info(message=f"rehearsal: capacity of {types} is {incident.capacity} instance(s)"))
            return
        choice = incident.kill if incident.kill is not None else incident.interrupt
        victim = _find_victim(choice, others, coordinator)
        if victim is None:
            self.emit(Warned(message=f"rehearsal: no instance {choice} to interrupt or kill"))
            return
        grace_s = 0.0 if incident.kill is not None else incident.grace
        effect = f"gets a notice of {grace_s:g} s" if grace_s else "is terminated without a notice"
        self.emit(Info(message=f"rehearsal: {effect}", instance_id=victim))
        try:
            self.faults.interrupt(victim, grace_s)
        except InstanceGoneError:
            message = "rehearsal: already terminated; this incident is skipped"
            self.emit(Warned(message=message, instance_id=victim))


def _list_others(workers: Sequence[TrainingInstance], coordinator: str) -> list[str]:
    """Return the training instances except the coordinator, the oldest first."""
    training = [worker for worker in workers if worker.state is InstanceStage.TRAINING]
    training.sort(key=lambda worker: (worker.member.instance.launched_at, worker.instance_id))
    return [worker.instance_id for worker in training if worker.instance_id != coordinator]


def _find_victim(choice: int | str | None, others: Sequence[str], coordinator: str) -> str | None:
    if not isinstance(choice, int):
        return coordinator or None
    return others[choice] if choice < len(others) else None
