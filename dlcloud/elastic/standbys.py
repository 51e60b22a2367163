"""Keeps a few instances ready to control the cluster, should the one that does be lost."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.scheduling.scaling import Worker, WorkerState
from dlcloud.scheduling.succession import choose_standbys

RETRY_S = 30.0
"""After a standby could not be prepared."""

log = logging.getLogger(__name__)

Prepare = Callable[[Member, int], None]
"""Give an instance all that it takes to control the cluster; its place in the order of succession, from 0."""


@dataclass(slots=True, kw_only=True)
class Standbys:
    """Prepares instances from a thread, and again whenever the workers change.

    Args:
        prepare: May raise DlcloudError; it is called again then.
    """

    prepare: Prepare
    clock: Clock
    emit: Emit
    _ready: tuple[str, ...] = field(default=(), init=False)
    _revision: tuple[tuple[str, ...], frozenset[str]] | None = field(default=None, init=False)
    _retry_at: float = field(default=float("-inf"), init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def update(self, workers: Sequence[Worker], controller: str) -> None:
        """Prepare what is missing, if nothing is being prepared already."""
        chosen = choose_standbys(workers, controller, self._ready)
        present = frozenset(w.instance_id for w in workers if w.state is not WorkerState.ARRIVING)
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or self._revision == (chosen, present) or self.clock.monotonic() < self._retry_at:
            return
        members = [worker.member for name in chosen for worker in workers if worker.instance_id == name]
        arguments = (members, (chosen, present))
        self._thread = threading.Thread(target=self._prepare, args=arguments, name="standbys", daemon=True)
        self._thread.start()

    def _prepare(self, members: Sequence[Member], revision: tuple[tuple[str, ...], frozenset[str]]) -> None:
        for place, member in enumerate(members):
            name = member.instance.instance_id
            try:
                self.prepare(member, place)
            except DlcloudError as error:
                self._retry_at = self.clock.monotonic() + RETRY_S
                self.emit(Warned(message=f"cannot stand by: {error.message}", instance_id=name))
                return
            if name not in self._ready:
                message = "stands by: it takes control if the coordinator is lost"
                self.emit(Info(message=message, instance_id=name))
                self._ready = (*self._ready, name)
        self._ready, self._revision = revision[0], revision
