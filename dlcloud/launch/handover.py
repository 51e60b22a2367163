"""Hand a cluster over to one of its own instances, which then controls it as an `up` here would.

No second controller exists: the instance is given dlcloud, the recipe and a home that knows this cluster
only, and runs the same `up` there. Whenever the launcher dies, either nobody is in charge there, and the next
`up` begins anew, or that `up` is, and the next one finds it so. There are never two.
"""

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.core.cluster import CONTROLLER_TAG, HOST_KEY_TAG, Cluster, ClusterState, Member
from dlcloud.core.errors import DlcloudError, InstanceError, StoreError
from dlcloud.core.events import Emit, Notice, stage
from dlcloud.core.handover import FILES, recipe_there
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.recipe import Recipe
from dlcloud.core.remote import Connection, Dial
from dlcloud.launch.installed import CONTROL, install
from dlcloud.launch.remote_jobs import LOG_TAIL_LINES
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.ssh.host_keys import KnownHosts, fingerprint
from dlcloud.store.clusters import HAND_OVER, IN_CHARGE, Clusters
from dlcloud.store.paths import Paths

JOB_FOLDER = f"{FOLDER}/runs/control"
"""The controller is a job like any other: the instance's watchdog takes it for work."""

GIVEN_UP = "given up"
"""The outcome of a hand-over after which nobody is in charge there."""

CHARGE_TIMEOUT_S = 300.0
POLL_S = 0.5
LOOK_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Hands one cluster over.

    Args:
        cluster: Which; the caller is in charge of it, and it is up.
        cloud: Where it is.
        dial: Reaches its instances.
        clusters: Where the hand-over is remembered.
        paths: Where the cluster's key and pinned host keys are.
        clock: For dates, and for how long is waited.
        emit: Is told of the stages.
    """

    cluster: Cluster
    cloud: Cloud
    dial: Dial
    clusters: Clusters
    paths: Paths
    clock: Clock
    emit: Emit

    def go(
        self,
        to: Member,
        recipe: Recipe,
        recipe_folder: Path,
        *,
        cidr: str,
        variables: Mapping[str, str],
        copy_store: Callable[[Path, Cluster], None],
    ) -> None:
        """Hand over, and return once the instance is in charge.

        Args:
            to: The instance, on-demand.
            recipe: The cluster's.
            recipe_folder: Its paths are relative to this.
            cidr: The network that may reach the instances.
            variables: What the environment of the instance's dlcloud is to hold.
            copy_store: Writes a store that knows this cluster only, as it is given, to a path.

        Raises:
            InstanceError: The instance could not be prepared, or its controller did not come up.
            CloudError: It could not be given its role.
        """
        cluster, name = self.cluster, to.instance.instance_id
        intent_id = self.clusters.begin_intent(cluster.cluster_id, HAND_OVER, name, self.clock.now())
        connection = self.dial.dial(to.instance.endpoint(cluster.user), wait_s=LOOK_WAIT_S)
        with stage(self.emit, self.clock, "giving it a role for this cluster only", instance_id=name):
            group_id = self.cloud.create_security_group(cluster.cluster_id, cluster.tags)
            self.cloud.allow_peers(group_id)
            self.cloud.attach_profile(name, self.cloud.put_control_role(cluster.cluster_id, cluster.tags))
        folder = install(
            connection, {"DLCLOUD_CONTROLLER": name, **variables}, clock=self.clock, emit=self.emit
        )
        with stage(self.emit, self.clock, "handing the cluster over", instance_id=name):
            self._send_recipe(connection, recipe, recipe_folder)
            self._send_home(connection, recipe, folder, copy_store)
            connection.send_bytes(self._command(folder, cidr).encode(), f"{JOB_FOLDER}/command")
            # Before it begins: there is no controller that cannot be found.
            self.cloud.put_tags([name], {CONTROLLER_TAG: cluster.user, HOST_KEY_TAG: self._host_key(name)})
        try:
            connection.check(f"{JOB} start {JOB_FOLDER}")
            self._await_charge(connection)
        except BaseException:
            with suppress(DlcloudError):
                connection.run(f"{JOB} stop {JOB_FOLDER}")
            raise
        self.clusters.end_intent(intent_id, IN_CHARGE, self.clock.now())

    def finish(self) -> bool:
        """Find out what became of a hand-over that was cut off; tell whether the instance is in charge.

        Raises:
            UnreachableError: The instance lives, and does not answer: nobody knows.
            InstanceError: Its controller did not come up.
        """
        begun = self.clusters.hand_over(self.cluster.cluster_id)
        if begun is None or begun.outcome is not None:
            return begun is not None and begun.outcome == IN_CHARGE
        seen = self.cloud.instances(self.cluster.cluster_id)
        there = next((each for each in seen if each.instance_id == begun.detail and each.alive), None)
        outcome = GIVEN_UP
        if there is not None:
            connection = self.dial.dial(there.endpoint(self.cluster.user), wait_s=LOOK_WAIT_S)
            state = job_state(connection)
            if state == "running":
                self.emit(
                    Notice(message="goes on with the hand-over that was cut off", instance_id=begun.detail)
                )
                self._await_charge(connection)
            if state == "running" or self._says_in_charge(connection):
                outcome = IN_CHARGE
            else:
                # A start that is still on its way finds no command to run.
                connection.check(f"rm -rf {JOB_FOLDER}")
        self.clusters.end_intent(begun.intent_id, outcome, self.clock.now())
        return outcome == IN_CHARGE

    def revive(self, connection: Connection) -> None:
        """Start the controller again where it has died, without a word of how it ended.

        Raises:
            InstanceError: It did not come up.
        """
        if job_state(connection) != "lost":
            return
        connection.check(f"rm -f {JOB_FOLDER}/pid {CONTROL}/home/{self._mark}")
        connection.check(f"{JOB} start {JOB_FOLDER}")
        self._await_charge(connection)

    def _send_recipe(self, connection: Connection, recipe: Recipe, recipe_folder: Path) -> None:
        connection.check(f"rm -rf {CONTROL}/recipe {CONTROL}/home {JOB_FOLDER}")
        connection.send_bytes(recipe_there(recipe).encode(), f"{CONTROL}/recipe/recipe.yaml")
        if recipe.workload.files is not None:
            connection.send_tree(recipe_folder / recipe.workload.files, f"{CONTROL}/recipe/{FILES}")

    def _send_home(
        self, connection: Connection, recipe: Recipe, folder: str, copy_store: Callable[[Path, Cluster], None]
    ) -> None:
        cluster = replace(
            self.cluster,
            recipe_text=recipe_there(recipe),
            recipe_path=f"{folder}/recipe/recipe.yaml",
            state=ClusterState.RUNNING,
        )
        connection.send_tree(
            self.paths.cluster(cluster.cluster_id),
            f"{CONTROL}/home/clusters/{cluster.cluster_id}",
            only=lambda path: path.suffix not in {".lock", ".new"} and path.name != "lock",
        )
        with tempfile.TemporaryDirectory() as made:
            copy_store(Path(made) / "store.sqlite", cluster)
            connection.send_tree(Path(made) / "store.sqlite", f"{CONTROL}/home")

    def _command(self, folder: str, cidr: str) -> str:
        words = ["up", f"{folder}/recipe/recipe.yaml", "--name", self.cluster.name, "--yes", "--cidr", cidr]
        return f"exec {shlex.quote(f'{folder}/dlcloud')} {shlex.join(words)}\n"

    def _host_key(self, instance_id: str) -> str:
        key = KnownHosts(self.paths.known_hosts(self.cluster.cluster_id)).pinned(instance_id)
        if key is None:
            raise StoreError(f"the host key of {instance_id} is not pinned")
        return fingerprint(key)

    def _await_charge(self, connection: Connection) -> None:
        name = connection.endpoint.instance_id
        deadline = self.clock.monotonic() + CHARGE_TIMEOUT_S
        with stage(self.emit, self.clock, "waiting until it is in charge", instance_id=name):
            while not self._says_in_charge(connection):
                ended = job_state(connection) != "running"
                if ended and self._says_in_charge(connection):
                    return  # it has ended between the two looks
                if ended or self.clock.monotonic() > deadline:
                    why = "ended" if ended else f"was not in charge after {CHARGE_TIMEOUT_S:.0f} s"
                    raise InstanceError(f"{name}: its controller {why}:\n{_tail(connection)}")
                self.clock.sleep(POLL_S)

    def _says_in_charge(self, connection: Connection) -> bool:
        return connection.run(f"test -e {CONTROL}/home/{self._mark}").exit_status == 0

    @property
    def _mark(self) -> Path:
        return self.paths.in_charge(self.cluster.cluster_id).relative_to(self.paths.home)


def job_state(connection: Connection) -> str:
    """Return where the controller's job stands: new, running, ended or lost."""
    told = connection.run(f"test ! -e {JOB_FOLDER}/pid || {JOB} state {JOB_FOLDER}").stdout
    return str(json.loads(told)["state"]) if told.strip() else "new"


def _tail(connection: Connection) -> str:
    told = connection.run(f"tail -n {LOG_TAIL_LINES} {JOB_FOLDER}/log")
    return told.stdout.decode("utf-8", "replace").rstrip()
