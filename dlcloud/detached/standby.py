"""Instances that stand by: they get what the controller has, and one of them takes over when it is lost.

A standby gets dlcloud, the recipe, the cluster's key and role, and a copy of the home that is renewed
whenever the instances change (`StandbyPreparer`). In an elastic training the controller runs on the
coordinator, and the standby's agent runs `take-over` when it hears nothing of that. Other workloads have no
coordinator: there a standby asks EC2 whether an instance controls the cluster (`WatchedStandbys`,
`wait_until_lost`), and what was done since the last renewal is done again.

`Succession` is the take-over. There are never two controllers: the control is claimed first, then every other
instance that may have had it is terminated, and only then the controller here is started.
"""

import logging
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dlcloud.detached.handover import CONTROL, DIAL_WAIT_S, HOME, HandOver, install_dlcloud, runtime_of
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import start_job
from dlcloud.launch.setup import FOLDER
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG, Member, control_role_name
from dlcloud.model.errors import DlcloudError, InstanceError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Instance, Market
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.succession import STANDBYS, SuccessionDecision, Turn, decide_succession
from dlcloud.store.clusters import SUCCESSION

TURN_S = 20.0
"""So much later than the one before it, a standby tries to take over."""

RENEW_S = 20.0
"""Results of this many seconds are lost with the controller's instance, and the work is done again."""

WATCH_S = 10.0
"""How often a standby asks EC2 whether an instance controls the cluster."""

WATCH_FOLDER = f"{FOLDER}/runs/stand-by"

LONGEST_REASON = 200

TAKEN = "taken"
"""Marks, in CONTROL, that the instance has taken over: nothing may replace its home from then on."""

_SWAP = (
    f"test -e {CONTROL}/{TAKEN} || {{ rm -rf {HOME}.old && {{ test ! -e {HOME} || mv {HOME} {HOME}.old; }}"
    f" && mv {HOME}.new {HOME} && rm -rf {HOME}.old; }}"
)


log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class StandbyPreparer:
    """Prepares instances of the cluster that this instance controls.

    The paths of the recipe are relative to `recipe_folder`; `cidrs` are the networks that may reach the
    instances, and `variables` are of the environment of the instance's dlcloud.
    """

    hand_over: HandOver
    recipe: Recipe
    recipe_folder: Path
    cidrs: Sequence[str]
    variables: Mapping[str, str]
    _folders: dict[str, str] = field(default_factory=dict, init=False)

    def prepare(self, member: Member, place: int) -> None:
        """Give an instance what it lacks to take over; `place` is in the order of succession, from 0.

        Raises:
            CloudError: It could not be given the role.
            UnreachableError, RemoteCommandError: It does not answer, or could not take it.
        """
        over, managed, instance_id = self.hand_over, self.hand_over.managed, member.instance.instance_id
        connection = managed.connect(member.instance, DIAL_WAIT_S)
        if instance_id not in self._folders:
            managed.cloud.instances.attach_profile(instance_id, control_role_name(managed.cluster_id))
            variables = {**self.variables, "DLCLOUD_CONTROLLER": instance_id}
            folder = install_dlcloud(
                connection,
                variables,
                packages=runtime_of(self.recipe),
                clock=managed.clock,
                emit=managed.emit,
            )
            over.send_recipe(connection, self.recipe, self.recipe_folder)
            self._folders[instance_id] = folder
        folder = self._folders[instance_id]
        connection.check(f"rm -rf {HOME}.new")
        over.send_home(connection, self.recipe, folder, f"{HOME}.new")
        connection.check(_SWAP)
        # Last: from now on it may take over.
        over.send_commands(connection, folder, self.cidrs, wait_s=place * TURN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """The take-over by the instance that this process runs on.

    Args:
        hand_over: Of its cluster.
        own: The instance's id.
        control: The folder CONTROL.
        environment: Of the controller: the secrets of the workers.
    """

    hand_over: HandOver
    own: str
    control: Path
    environment: JobEnvironment = field(default_factory=JobEnvironment)

    @property
    def managed(self) -> ManagedCluster:
        return self.hand_over.managed

    def take_over(self) -> bool:
        """Take the control, or restart a controller that was killed here; False if another one has it.

        First the control is claimed, then every other controller is terminated, and only then begins the
        controller here. An interrupted take-over is continued by the next call.

        Raises:
            CloudError: EC2 does not answer, or does not end the former coordinator.
        """
        managed = self.managed
        listed = managed.describe_instances()
        claims = managed.cloud.claims.find(managed.cluster_id)
        decision = decide_succession(self.own, list(listed.values()), claims, managed.clock.now())
        managed.emit(Info(message=f"{decision.turn}: {decision.reason}", instance_id=self.own))
        if decision.turn not in {Turn.CLAIM, Turn.CONTINUE}:
            return False
        if decision.turn is Turn.CLAIM and not managed.cloud.claims.claim(
            decision.term, self.own, managed.cluster.tags
        ):
            managed.emit(Info(message="another instance has claimed the control", instance_id=self.own))
            return False
        if decision.term:
            self._become_controller(decision, listed)
        self._start_controller()
        return True

    def _become_controller(self, decision: SuccessionDecision, listed: Mapping[str, Instance]) -> None:
        managed, clusters = self.managed, self.managed.store.clusters
        (self.control / TAKEN).touch()
        stored = {m.instance.instance_id: m for m in clusters.members(managed.cluster_id)}
        # Also those whose end was begun before: whether EC2 was asked is not known.
        fenced = [stored.get(name) or Member(instance=listed[name]) for name in decision.fence]
        managed.shrink(fenced)
        terms = {intent.detail for intent in clusters.intents(managed.cluster_id, SUCCESSION)}
        if str(decision.term) not in terms:
            now = managed.clock.now()
            intent_id = clusters.begin_intent(managed.cluster_id, SUCCESSION, str(decision.term), now)
            clusters.end_intent(intent_id, self.own, now)
        tags = {
            CONTROLLER_TAG: managed.cluster.user,
            HOST_KEY_TAG: self.hand_over.host_key_fingerprint(self.own),
        }
        managed.cloud.instances.put_tags([self.own], tags)

    def _start_controller(self) -> None:
        """Start the controller's job, unless it runs.

        Raises:
            InstanceError: It could not be started.
        """
        root = self.control.parent
        folder = root / "runs" / "control"
        job = [sys.executable, "-I", "-S", str(root / "job.py")]
        state = subprocess.run([*job, "state", str(folder)], capture_output=True, text=True, check=False)
        if '"running"' in state.stdout:
            return
        for name in ("pid", "exit_status"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "work", ignore_errors=True)
        words = [*job, "start", str(folder), "-"]
        started = subprocess.run(words, input=self.environment.encode(), capture_output=True, check=False)
        if started.returncode:
            reason = started.stderr.decode(errors="replace").strip()[-LONGEST_REASON:]
            raise InstanceError(f"the controller could not be started: {reason}")


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
