"""Who coordinates, and what happens when that instance is lost: nobody trains two runs, nothing is forgotten.

The state of a run is in the memory of every worker, so it outlives the coordinator, whose loss takes the
lighthouse and the ledger along. First the old instance is ended for certain: two coordinators would be two
runs. Then another on-demand instance takes over, with a ledger that begins where the run was; only when its
lighthouse is up are the others told, and go on with what they have.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from dlcloud.core.cluster import Member
from dlcloud.core.elastic import successor
from dlcloud.core.errors import DlcloudError, InstanceError
from dlcloud.core.events import Emit, Notice, Warned
from dlcloud.core.protocols import Clock
from dlcloud.elastic.lead import Coordinator
from dlcloud.elastic.team import WorkerRegistry

AGAIN_S = 3.0
"""Between two tries to tell an instance, or to end one."""

log = logging.getLogger(__name__)


class Phase(Enum):
    """How far a change of coordinator has come.

    STEADY: there is one. ENDING: the lost one is being ended. VACANT: nobody is there to take over.
    STARTING: one is chosen, its lighthouse is not up. GATHERING: the others are told; no step is taken yet.
    """

    STEADY = "steady"
    ENDING = "ending"
    VACANT = "vacant"
    STARTING = "starting"
    GATHERING = "gathering"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTerminated:
    """The lost coordinator is ended for certain."""


@dataclass(slots=True, kw_only=True)
class CoordinatorFailover:
    """Keeps somebody coordinating.

    Args:
        team: Where the workers stand.
        following: Whose agents are followed, by instance id; kept up to date by its owner.
        inform: Tells an instance who coordinates; returns whether it has anything that could be told.
        end: Ends instances.
        post: Takes what happens, from any thread.
        clock: For waits.
        emit: Is told what happens.
    """

    team: WorkerRegistry
    following: Collection[str]
    inform: Callable[[Member], bool]
    end: Callable[[Sequence[Member]], object]
    post: Callable[[CoordinatorTerminated], None]
    clock: Clock
    emit: Emit
    lead: Coordinator = field(init=False)
    phase: Phase = field(init=False, default=Phase.STEADY)
    _lost_at: int = field(init=False, default=0)
    _told: dict[str, tuple[int, int, int]] = field(init=False, default_factory=dict)
    _telling: set[tuple[str, tuple[int, int, int]]] = field(init=False, default_factory=set)
    _changed: bool = field(init=False, default=False)

    def begin(self, first: Member, minimum: int = 1) -> None:
        """Begin with the instance that coordinates, or has to where an earlier controller saw it lost."""
        self.lead = Coordinator(member=first, step=self.team.step, minimum=minimum)
        if self.team.step:
            generation = self.team.generation + 1
            self.lead = replace(self.lead, generation=generation, least=self._least())
            self._lost_at = self.team.step
            self._changed = True
            started = self.team.coordinated(self.lead.instance_id)
            self.phase = Phase.GATHERING if started else Phase.STARTING

    def lose(self) -> None:
        """Take note that the coordinator is gone.

        Raises:
            InstanceError: Nobody else has the state of a run that has begun.
        """
        gone, self._lost_at = self.lead.instance_id, self.team.step
        self._refuse_if_lost()
        told = f"coordinated the others, and is gone; {len(self._holders())} of them hold the state of step"
        self.emit(Warned(message=f"{told} {self._least()} of {self._lost_at}", instance_id=gone))
        self.phase = Phase.ENDING
        threading.Thread(target=self._end, args=(self.lead.member,), name=f"end {gone}", daemon=True).start()

    def reconsider(self) -> None:
        """Take note that another instance is gone: while a change is under way its state may be missed.

        Raises:
            InstanceError: It was the last one that had the state.
        """
        if self.phase is Phase.STEADY:
            return
        self._refuse_if_lost()
        if self.phase is Phase.GATHERING:
            self._gather()

    def set_minimum(self, minimum: int) -> None:
        """Let a step need so many workers from now on."""
        if minimum != self.lead.minimum:
            self._changed, self.lead = True, replace(self.lead, minimum=minimum)
            self.remind()

    def vacated(self) -> None:
        """Look for a successor from now on."""
        self.phase = Phase.VACANT

    def fill(self) -> None:
        """Let an on-demand instance take over, where one is missing and one is there."""
        found = successor(self.team.workers) if self.phase is Phase.VACANT else None
        if found is None:
            return
        generation = max(self.lead.generation, self.team.generation) + 1
        self.lead = replace(
            self.lead, member=found, generation=generation, step=self._lost_at, least=self._least()
        )
        self._changed = True
        self.phase = Phase.STARTING
        self.emit(Notice(message="coordinates the others from now on", instance_id=self.lead.instance_id))
        self.remind()

    def take(self, instance_id: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Learn from new records of an instance; tell it what it may not know."""
        if not self._changed:
            return
        lead, phase = self.lead, self.phase
        started = any(record.get("event") == "lighthouse_started" for record in records)
        if phase is Phase.STARTING and instance_id == lead.instance_id and started:
            self._gather()
        stepped = any(_steps(record, lead.generation) for record in records)
        if phase is Phase.GATHERING and stepped:
            # From now on a checkpoint is as good as a state: should all be lost, nobody must wait for a peer.
            self.phase, self.lead = Phase.STEADY, replace(lead, least=0)
            self.remind()
        self._tell(instance_id)

    def remind(self) -> None:
        """Tell everyone who may not know who coordinates."""
        for name in list(self.following):
            self._tell(name)

    def _gather(self) -> None:
        least = self._least()
        if self.phase is not Phase.GATHERING:
            again = self._lost_at - least
            told = f"{again} step(s) are taken again" if again else "no step is lost"
            self.emit(Notice(message=f"the training goes on from step {least}: {told}"))
        self.phase, self.lead = Phase.GATHERING, replace(self.lead, least=least)
        self.remind()

    def _holders(self) -> list[str]:
        return [name for name in self.following if self.team.held(name) is not None]

    def _least(self) -> int:
        return max((self.team.held(name) or 0 for name in self._holders()), default=0)

    def _refuse_if_lost(self) -> None:
        if self._lost_at and not self._holders():
            raise InstanceError(
                f"the coordinator {self.lead.instance_id} is gone, and no other instance has the model's "
                f"state: the {self._lost_at} steps are lost",
                "dlcloud up again starts anew; with more instances it is less likely",
            )

    def _end(self, member: Member) -> None:
        """End the lost one for certain; until then nobody may take over."""
        while True:
            try:
                self.end([member])
            except DlcloudError as error:
                self.emit(Warned(message=error.message, instance_id=member.instance.instance_id))
                self.clock.sleep(AGAIN_S)
            else:
                self.post(CoordinatorTerminated())
                return

    def _tell(self, name: str) -> None:
        """Tell an instance, in a thread: one that does not answer must not hold up the others."""
        lead = self.lead
        known = self._told.get(name) == lead.order or (name, lead.order) in self._telling
        ready = self.phase in {Phase.GATHERING, Phase.STEADY}
        early = self.phase is Phase.STARTING and name == lead.instance_id
        if self._changed and not known and (ready or early):
            self._telling.add((name, lead.order))
            arguments = (self.team.member(name), lead)
            threading.Thread(target=self._inform, args=arguments, name=f"tell {name}", daemon=True).start()

    def _inform(self, member: Member, lead: Coordinator) -> None:
        name = member.instance.instance_id
        while self.lead == lead and name in self.following:
            try:
                # Where nothing could be told yet, its first record comes back to it.
                if self.inform(member):
                    self._told[name] = lead.order
                break
            except DlcloudError as error:
                log.warning("%s cannot be told who coordinates: %s", name, error.message)
                self.clock.sleep(AGAIN_S)
        self._telling.discard((name, lead.order))


def _steps(record: Mapping[str, Any], generation: int) -> bool:
    """Tell whether a record is of a step that was taken under a coordinator of this generation."""
    return record.get("record") == "step" and record.get("generation") == generation
