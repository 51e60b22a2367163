"""`dlcloud resize` while a command runs that keeps checkpoints.

One job over all instances stops, and starts again on the new number of them (`NodesRunner`). Of runs by
themselves only those stop whose instances leave; the others run on, and new instances run the command, too
(`Runner`).
"""

from collections.abc import Sequence

from dlcloud.launch.managed import ManagedCluster
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Info, Warned
from dlcloud.planning.resize import decide_size
from dlcloud.recipe.recipe import Recipe
from dlcloud.runs.replacement import Replacements
from dlcloud.store.clusters import RESIZE

POLL_S = 1.0


class Resizing:
    """Follows the sizes that are asked for, and changes the instances.

    Attributes:
        members: The instances that run the workload.
        left_ids: Those that leave, or have left.
    """

    def __init__(
        self,
        *,
        managed: ManagedCluster,
        recipe: Recipe,
        replacements: Replacements,
        members: Sequence[Member],
    ) -> None:
        self.members, self.left_ids = list(members), set[str]()
        self._managed, self._recipe, self._replacements = managed, recipe, replacements
        self._clusters = managed.store.clusters
        self._seen = 0  # one that came while they were launched counts, too

    def requested(self) -> int | None:
        """Return the size that was asked for last; None if it is not new, or the present one."""
        intents = self._clusters.intents(self._managed.cluster_id, RESIZE)
        if len(intents) == self._seen:
            return None
        self._seen = len(intents)
        size = int(intents[-1].detail)
        return None if size == len(self.members) else size

    def replace(self, lost: Member, new: Member) -> None:
        """Note which instance took the place of another."""
        lost_id = lost.instance.instance_id
        self.members = [new if member.instance.instance_id == lost_id else member for member in self.members]

    def grow(self, size: int) -> list[Member]:
        """Launch what is missing, and return it; if that is too little, emit why."""
        managed, reason = self._managed, "no pool has capacity"
        try:
            new = self._replacements.resize(size)
        except DlcloudError as error:
            new, reason = [], error.message
        self.members = [*self.members, *new]
        count = len(self.members)
        if count < size:  # a later command must not request the refused instances again
            managed.emit(Warned(message=f"{count} instance(s), not {size}: {reason}"))
            now = managed.clock.now()
            self._clusters.end_intent(
                self._clusters.begin_intent(managed.cluster_id, RESIZE, str(count), now), reason, now
            )
        return new

    def choose_leaving(self, size: int) -> list[Member]:
        """Return the instances that are too many for a size; from then on their runs are not replaced."""
        instances = self._recipe.instances
        decision = decide_size(self.members, size, base=instances.on_demand_base, rounds=instances.rounds)
        self.left_ids |= {member.instance.instance_id for member in decision.end}
        return list(decision.end)

    def end(self, members: Sequence[Member]) -> None:
        """Terminate instances whose programs have stopped."""
        self.members = [member for member in self.members if member not in members]
        self._replacements.resize(len(self.members), end=members)
        emit = self._managed.emit
        try:
            self._managed.shrink(members)
        except DlcloudError as error:  # at the latest they end with the cluster
            emit(Warned(message=f"not terminated yet: {error.message}"))
        emit(Info(message=f"resized: {len(self.members)} instance(s) run the command"))
