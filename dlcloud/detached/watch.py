"""Instances that watch the controller of a workload without a coordinator, and take over when it is lost.

The controller prepares them, and renews what they know while it works. They take over when EC2 says that no
instance controls the cluster any more: what was done since the last renewal is done again.
"""

import logging
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dlcloud.detached.handover import CONTROL, DIAL_WAIT_S
from dlcloud.detached.standby import StandbyPreparer
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import start_job
from dlcloud.launch.setup import FOLDER
from dlcloud.model.cluster import CONTROLLER_TAG, Member
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Market
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.scheduling.succession import STANDBYS

RENEW_S = 20.0
"""Results of so many seconds are lost with the controller's instance, and the work is done again."""

WATCH_S = 10.0
"""How often a standby asks EC2 whether an instance controls the cluster."""

WATCH_FOLDER = f"{FOLDER}/runs/stand-by"

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class WatchedStandbys:
    """Keeps a few instances ready, from a thread.

    Args:
        preparer: Gives an instance all that it takes to control the cluster.
        own: The id of the instance that controls it now.
        environment: Of the work, with its secrets.
    """

    preparer: StandbyPreparer
    own: str
    environment: JobEnvironment
    _watching: set[str] = field(default_factory=set, init=False)

    @contextmanager
    def kept_ready(self) -> Iterator[None]:
        """Renew what the standbys know while the block runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(stop,), name="standbys", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    @property
    def _managed(self) -> ManagedCluster:
        return self.preparer.hand_over.managed

    def _renew_until(self, stop: threading.Event) -> None:
        while True:
            try:
                self._renew()
            except DlcloudError as error:
                log.warning("the standbys are not renewed: %s", error.message)
            if stop.wait(RENEW_S):
                return

    def _renew(self) -> None:
        members = self._managed.store.clusters.members(self._managed.cluster_id)
        for place, member in enumerate(choose_watchers(members, self.own, self._watching)):
            name = member.instance.instance_id
            self.preparer.prepare(member, place)
            if name in self._watching:
                continue
            self._start_watching(member)
            self._watching.add(name)
            message = "stands by: it takes control if the controller is lost"
            self._managed.emit(Info(message=message, instance_id=name))

    def _start_watching(self, member: Member) -> None:
        connection = self._managed.connect(member.instance, DIAL_WAIT_S)
        words = ["take-over", self._managed.cluster_id, "--watch"]
        program = f"{CONTROL}/dlcloud {shlex.join(words)}"
        command = f'cd "$HOME" && until {program}; do sleep {WATCH_S:g}; done\n'
        layout = {"files": {"command": command}}
        start_job(connection, WATCH_FOLDER, self.environment.of_controller(), layout)


def choose_watchers(members: list[Member], own: str, before: set[str]) -> list[Member]:
    """Return the instances that stand by: those that did before, then on-demand ones, the oldest first."""
    others = [m for m in members if m.ended_at is None and m.instance.instance_id != own]

    def rank(member: Member) -> tuple[bool, bool, str]:
        instance = member.instance
        is_new = instance.instance_id not in before
        return is_new, instance.market is not Market.ON_DEMAND, instance.instance_id

    return sorted(others, key=rank)[:STANDBYS]


def is_controlled(managed: ManagedCluster) -> bool:
    """True if an instance that EC2 lists as living controls the cluster."""
    living = [one for one in managed.describe_instances().values() if one.alive]
    return any(CONTROLLER_TAG in instance.tags for instance in living)


def wait_until_lost(managed: ManagedCluster, own: str) -> None:
    """Wait until no instance controls the cluster; where EC2 cannot be asked, that is not known."""
    while True:
        managed.clock.sleep(WATCH_S)
        try:
            if not is_controlled(managed):
                message = "no instance controls the cluster any more"
                managed.emit(Warned(message=message, instance_id=own))
                return
        except DlcloudError as error:
            log.warning("EC2 does not say whether the cluster is controlled: %s", error.message)
