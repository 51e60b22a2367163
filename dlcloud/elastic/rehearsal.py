"""What befalls a rehearsal, at its times: interruptions, sudden ends, a lack of capacity."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dlcloud.core.events import Emit, Notice, Warned
from dlcloud.core.recipe import Incident


class Fate(Protocol):
    """What can be done to the local cloud."""

    def interrupt(self, instance_id: str, grace_s: float) -> None:
        """Give a spot interruption notice and end the instance after the grace."""

    def set_capacity(self, instance_type: str, count: int) -> None:
        """Let so many instances of a type live at once."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """Carries incidents out, each once.

    Args:
        incidents: What is to happen.
        types: The recipe's instance types.
        fate: Lets it happen.
        emit: Is told of it.
    """

    incidents: Sequence[Incident]
    types: Sequence[str]
    fate: Fate
    emit: Emit
    _done: set[int] = field(default_factory=set)

    def go_on(self, seconds: float, others: Sequence[str], coordinator: str = "") -> None:
        """Let happen what is due.

        Args:
            seconds: Since the first step.
            others: The instances that train and do not coordinate, the oldest first.
            coordinator: The one that does.
        """
        for number, incident in enumerate(self.incidents):
            if number not in self._done and incident.after <= seconds:
                self._done.add(number)
                self._happen(incident, others, coordinator)

    def _happen(self, incident: Incident, others: Sequence[str], coordinator: str) -> None:
        if incident.capacity is not None:
            for name in self.types:
                self.fate.set_capacity(name, incident.capacity)
            told = f"rehearsal: {incident.capacity} instance(s) of {', '.join(self.types)} may live at once"
            self.emit(Notice(message=told))
            return
        chosen = incident.kill if incident.kill is not None else incident.interrupt
        victim = _named(chosen, others, coordinator)
        if victim is None:
            self.emit(Warned(message=f"rehearsal: there is no instance {chosen} to interrupt or kill"))
            return
        grace_s = 0.0 if incident.kill is not None else incident.grace
        told = "ends without a notice" if not grace_s else f"gets a notice of {grace_s:g} s"
        self.emit(Notice(message=f"rehearsal: {told}", instance_id=victim))
        self.fate.interrupt(victim, grace_s)


def _named(chosen: int | str | None, others: Sequence[str], coordinator: str) -> str | None:
    if not isinstance(chosen, int):
        return coordinator or None
    return others[chosen] if chosen < len(others) else None
