"""Let workers leave, and terminate their instances, from threads: they are still billed."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.scheduling.scaling import EC2_ENDS_WITHIN, WorkerState, is_free_if_ec2_ends_it

RESIZE = "resize"
"""The cause that a worker records: it is not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Lets workers of one training leave.

    Args:
        registry: Knows the state of the workers, and which instances are interrupted.
        drain: Asks the worker on an instance to leave after its step, and tells it why.
        end: Terminates instances.
    """

    registry: WorkerRegistry
    drain: Callable[[Member, str], None]
    end: Callable[[Sequence[Member]], object]
    clock: Clock
    emit: Emit
    _drained: set[str] = field(init=False, default_factory=set)
    _release_at: dict[str, datetime] = field(init=False, default_factory=dict)

    def is_new(self, names: Iterable[str]) -> bool:
        """True if one of these workers was not asked to leave yet."""
        return not self._drained.issuperset(names)

    def begin(self, name: str, cause: str) -> None:
        """Ask a worker to leave, once; one that has not trained yet has nothing to finish."""
        if name in self._drained:
            return
        self._drained.add(name)
        self.emit(Info(message=f"leaves: {cause}", instance_id=name))
        is_arriving = self.registry.state(name) is WorkerState.ARRIVING
        self.registry.mark_leaving(name)
        try:
            self.drain(self.registry.member(name), RESIZE)
        except DlcloudError as error:
            self.emit(Warned(message=error.message, instance_id=name))
            is_arriving = True
        if is_arriving:
            self.release(name)

    def release_departed(self, name: str) -> None:
        """Terminate an instance that has no worker any more, unless it is free where EC2 itself ends it."""
        instance, now = self.registry.member(name).instance, self.clock.now()
        if not self.registry.is_interrupted(name) or not is_free_if_ec2_ends_it(instance, now):
            self.release(name)
            return
        self._release_at[name] = now + EC2_ENDS_WITHIN
        message = "is left to EC2, which ends it within two minutes: its first hour is then free"
        self.emit(Info(message=message, instance_id=name))

    def release_overdue(self) -> None:
        """Terminate the instances that EC2 should have ended."""
        for name in [name for name, at in self._release_at.items() if at <= self.clock.now()]:
            del self._release_at[name]
            self.release(name)

    def release(self, name: str) -> None:
        """Terminate an instance from a thread: its worker has left, and it is still billed."""
        member = self.registry.member(name)
        threading.Thread(target=self._terminate, args=(member,), name=f"end {name}", daemon=True).start()

    def _terminate(self, member: Member) -> None:
        try:
            self.end([member])
        except DlcloudError as error:
            self.emit(Warned(message=error.message, instance_id=member.instance.instance_id))
