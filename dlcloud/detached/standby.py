"""Instances that stand by: they get what the controller has, and one of them takes over when it is lost.

A standby gets dlcloud, the recipe, the cluster's key and role, and a copy of the home that is renewed
whenever the instances change. Its agent runs `take-over` when it hears nothing of the coordinator.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlcloud.detached.handover import CONTROL, DIAL_WAIT_S, HOME, HandOver, install_dlcloud, runtime_of
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.members import terminate_members
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG, Member, control_role_name
from dlcloud.model.errors import InstanceError
from dlcloud.model.events import Info
from dlcloud.model.instance import Instance
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.succession import SuccessionDecision, Turn, decide_succession
from dlcloud.store.clusters import SUCCESSION

TURN_S = 20.0
"""So much later than the one before it, a standby tries to take over."""

LONGEST_REASON = 200

TAKEN = "taken"
"""Marks, in CONTROL, that the instance has taken over: nothing may replace its home from then on."""

_SWAP = (
    f"test -e {CONTROL}/{TAKEN} || {{ rm -rf {HOME}.old && {{ test ! -e {HOME} || mv {HOME} {HOME}.old; }}"
    f" && mv {HOME}.new {HOME} && rm -rf {HOME}.old; }}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
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
        terminate_members(managed, fenced)
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
