"""Work with detached clusters from any machine with the account: find one, log in, run a command, fetch."""

import logging
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.detached.handover import COMMAND, CONTROL, JOB_FOLDER, job_state
from dlcloud.detached.locate import DetachedCluster, find_detached
from dlcloud.detached.state import check_copy, import_cluster, run_ids
from dlcloud.launch.admit import move_access
from dlcloud.launch.remote_jobs import log_tail
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.model.account import Owner, Ownership, owner_of
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import DEFAULT_REGION, NO_OWNER, REGIONS_AT_ONCE, Cluster
from dlcloud.model.errors import CloudError, DlcloudError, InstanceError, RecipeError, UnreachableError
from dlcloud.model.events import Emit, Info, Warned, stage
from dlcloud.model.remote import Connection
from dlcloud.recipe.recipe import read_recipe
from dlcloud.ssh.command_line import ssh_command, tunnel_command
from dlcloud.store.database import Database, open_foreign
from dlcloud.store.home import Store
from dlcloud.store.runs import Runs
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:  # it brings paramiko
    from dlcloud.ssh.route import Connect

LOGIN_WAIT_S = 20.0
STORE = "store.sqlite"
LONGEST_STATUS = 20
# A copy, whole: the files of a store that is in use are not.
_COPY = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSession:
    """A login on a controlling instance, with the files for the system's ssh."""

    connection: Connection
    key: Path
    known_hosts: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedClusters:
    """The clusters that their own instances control, wherever they were launched.

    `cloud` returns EC2 by its name (`aws` or `local`), a region and a profile. `controller_instance_id` is
    empty but on an instance that controls its own cluster. `route` returns the way to an instance. `profile`
    is this command's, and `first_region` is asked which others its account has. `owner` returns whose
    clusters are found, unless `all_owners`. `verify` refuses credentials of another account than a cluster's.
    """

    store: Store
    database: Database
    cloud: Callable[[str, str, str], Ec2Cloud]
    has_local_site: Callable[[], bool]
    controller_instance_id: str
    clock: Clock
    emit: Emit
    route: "Callable[[DetachedCluster], Connect]"
    profile: str = ""
    first_region: str = DEFAULT_REGION
    owner: Callable[[str, str, str], Owner] = lambda *_: NO_OWNER
    all_owners: bool = False
    verify: Callable[[Cluster], None] = lambda _: None

    def find(self, name: str) -> DetachedCluster | None:
        """Return the detached cluster that a name means; None if there is none.

        Args:
            name: Of the cluster, its id, one of its runs or instances; empty for the only cluster.

        Raises:
            UnreachableError: This home handed the cluster over, and the instance is gone.
        """
        if self.controller_instance_id:
            return None
        cluster = self.store.find_cluster(name)
        if cluster is None:
            places = (self._on_local, self._on_aws) if name else ()
            named = (d for place in places for d in place() if d.is_named(name))
            return next((d for d in named if self._is_ours(d)), None)
        controller = self.store.controller_of(cluster)
        if controller is None:
            return None
        self.verify(cluster)
        detached = self.find_of(cluster)
        if detached is not None:
            return detached
        raise UnreachableError(
            f"{cluster.name} was controlled by its own instance {controller}, which is gone",
            f"another machine terminated it, or its budget ended; {_kept_checkpoints(cluster)}"
            f"dlcloud down {cluster.name} terminates what is left",
        )

    def find_all(self) -> list[DetachedCluster]:
        """Return all that can be found: on the local EC2 if one runs, in every region of AWS."""
        return [d for d in (*self._on_local(), *self._on_aws()) if self._is_ours(d)]

    def describe_owner(self, detached: DetachedCluster) -> str:
        """Return the owner of a detached cluster."""
        mine = self.owner(detached.cloud, detached.region, detached.profile)
        return mine.describe(owner_of(detached.instance.tags))

    def _is_ours(self, detached: DetachedCluster) -> bool:
        """True for a cluster of this caller or this home; for any, if all owners are meant."""
        if self.all_owners or self.store.clusters.find(detached.cluster_id) is not None:
            return True
        mine = self.owner(detached.cloud, detached.region, detached.profile)
        return mine.relation(owner_of(detached.instance.tags)) is not Ownership.OTHER_OWNER

    def find_of(self, cluster: Cluster) -> DetachedCluster | None:
        """Return a cluster of this home if one of its own instances controls it, and is up."""
        candidates = self._in_region(cluster.cloud, cluster.region, cluster.profile)
        return next((d for d in candidates if d.cluster_id == cluster.cluster_id), None)

    @contextmanager
    def log_in(self, detached: DetachedCluster) -> Iterator[ControllerSession]:
        """Log in on the instance: with the cluster's key where this home has it, else with a temporary one.

        Raises:
            UnreachableError: It does not answer, or takes no keys.
            HostKeyError: Another machine answers.
        """
        from dlcloud.ssh import dial, keys  # noqa: PLC0415  they bring paramiko, which `find` never needs

        cloud = self.cloud(detached.cloud, detached.region, detached.profile)
        if not detached.is_private:
            move_access(detached.cluster_id, caller=cloud.caller, network=cloud.network, emit=self.emit)
        with tempfile.TemporaryDirectory() as temporary:
            key = self.store.paths.key(detached.cluster_id)
            if not key.exists():
                key = Path(temporary) / "key"
                cloud.instances.admit_key(detached.instance, detached.user, keys.create_key(key))
            known_hosts = Path(temporary) / "known_hosts"
            dialer = dial.Dialer(
                key_path=key,
                known_hosts=known_hosts,
                secret=lambda _: None,
                fingerprint=detached.host_key,
                clock=self.clock,
                loopback_only=detached.cloud == "local",
                connect=self.route(detached),
            )
            with closing(dialer):
                endpoint = detached.endpoint
                connection = dialer.dial(endpoint, wait_s=LOGIN_WAIT_S)
                yield ControllerSession(connection=connection, key=key, known_hosts=known_hosts)

    def forward_command(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
    ) -> int | None:
        """Run a command of dlcloud on the instance that controls a cluster, relaying its output.

        `name` is the cluster that the command is about, as typed; empty for the only one.

        Returns:
            Its exit status; None where the cluster is controlled from here, or is not found.

        Raises:
            UnreachableError: The instance does not answer.
        """
        detached = self.find(name)
        if detached is None:
            return None
        instance_id = detached.instance.instance_id
        self.emit(Info(message=f"asking {instance_id}, which controls {detached.name}"))
        with self.log_in(detached) as session:
            # The touch makes the call count as work: see templates/watchdog.py.
            command = f"touch {FOLDER}/used; exec {COMMAND} {shlex.join(arguments)}"
            return session.connection.relay(command, out=out, err=err)

    def open_shell(self, name: str, instance: str, command: Sequence[str] = ()) -> int | None:
        """Open a shell, or run a command, through the instance that controls a cluster.

        Returns:
            The exit status; None where the cluster is controlled from here.

        Raises:
            RecipeError: There is no ssh on this machine.
            UnreachableError: The instance does not answer.
        """
        detached = self.find(name)
        if detached is None:
            return None
        program = shutil.which("ssh")
        if program is None:
            raise RecipeError("this machine has no ssh", f"dlcloud exec {name} -- COMMAND")
        words = ["ssh", detached.cluster_id, *(["--instance", instance] if instance else [])]
        words += ["--", *command] if command else []
        with self.log_in(detached) as session:
            _, *options = ssh_command(
                detached.endpoint, session.key, session.known_hosts, proxy=self._proxy(detached)
            )
            # -t: a shell needs a terminal.
            terminal = [] if command else ["-t"]
            whole = [program, *terminal, *options, f"exec {COMMAND} {shlex.join(words)}"]
            return subprocess.run(whole, check=False).returncode

    def is_training(self, detached: DetachedCluster) -> bool:
        """True if the controller on the instance still works; False also where it does not answer."""
        try:
            with self.log_in(detached) as session:
                return job_state(session.connection) == "running"
        except DlcloudError:
            return False

    def fetch(self, detached: DetachedCluster, *, unfinished: bool = False) -> Cluster:
        """End the controller, and store here the cluster, its runs, their records and files; once or often.

        Args:
            detached: The cluster.
            unfinished: Do so too where the controller was killed, without what its runs have made since.

        Returns:
            The cluster, as this home knows it from now on.

        Raises:
            UnreachableError, HostKeyError: The instance does not answer.
            InstanceError: The controller was killed while runs went on.
            StoreError, RecipeError: What it sent cannot be true.
        """
        instance_id, paths = detached.instance.instance_id, self.store.paths
        with self.log_in(detached) as session:
            connection = session.connection
            state = job_state(connection)
            if state == "running":
                with stage(self.emit, self.clock, "ending the controller", instance_id=instance_id):
                    connection.check(f"{JOB} stop {JOB_FOLDER}")
            with (
                stage(self.emit, self.clock, "downloading the results", instance_id=instance_id),
                tempfile.TemporaryDirectory() as temporary,
                closing(open_foreign(_fetch_store(connection, Path(temporary)))) as fetched,
            ):
                check_copy(fetched, self.database, detached.cluster_id)
                going_on = [
                    run for run in Runs(fetched).of_cluster(detached.cluster_id) if run.ended_at is None
                ]
                if state == "lost" and going_on and not unfinished:
                    raise InstanceError(
                        f"{instance_id}: its controller was killed while {len(going_on)} run(s) went on",
                        f"dlcloud up RECIPE --detach --name {detached.name} starts it again, "
                        "on the machine that launched it",
                    )
                # Files first: a cluster that the store knows has all of its files.
                patterns = [f"{run_id}/**" for run_id in run_ids(fetched, detached.cluster_id)]
                connection.check(f"mkdir -p {CONTROL}/home/runs")
                connection.fetch_files(f"{CONTROL}/home/runs", patterns, paths.make_folder(paths.runs))
                cluster = import_cluster(
                    fetched,
                    self.database,
                    detached.cluster_id,
                    controller_instance_id=instance_id,
                    profile=detached.profile,
                    now=self.clock.now(),
                )
            self._warn_of_failure(connection, cluster)
        return cluster

    def _proxy(self, detached: DetachedCluster) -> str:
        """Return the command by which ssh reaches an instance without a public address."""
        place = (detached.cluster_id, detached.instance.instance_id)
        return tunnel_command(self.store.paths.home, *place) if detached.is_private else ""

    def _warn_of_failure(self, connection: Connection, cluster: Cluster) -> None:
        """Emit why the controller ended, where it failed."""
        paths = self.store.paths
        folder = paths.make_folder(paths.run(f"{cluster.name}-control"))
        connection.fetch_files(JOB_FOLDER, ["log", "exit_status"], folder)
        path = folder / "exit_status"
        status = path.read_text("utf-8", "replace")[:LONGEST_STATUS].strip() if path.exists() else ""
        if status not in {"", "0", "130"}:
            message = f"its controller ended with status {status}:\n{log_tail(folder / 'log')}"
            self.emit(Warned(message=message, instance_id=connection.endpoint.instance_id))

    def _in_region(self, cloud: str, region: str, profile: str) -> list[DetachedCluster]:
        instances = self.cloud(cloud, region, profile).instances.find()
        return find_detached(instances, cloud=cloud, region=region, profile=profile)

    def _on_local(self) -> list[DetachedCluster]:
        """Look in the region of recipes that name none: to ask about another costs the local EC2 a second."""
        return self._in_region("local", DEFAULT_REGION, "") if self.has_local_site() else []

    def _on_aws(self) -> list[DetachedCluster]:
        """Look in every region in parallel; an account, or a region, that cannot be asked has none."""
        try:
            regions = self.cloud("aws", self.first_region, self.profile).caller.regions()
        except CloudError as error:
            log.info("AWS is not searched: %s", error.message)
            return []
        outcomes = fan_out(
            lambda region: self._in_region("aws", region, self.profile),
            regions,
            width=REGIONS_AT_ONCE,
            failures=CloudError,
        )
        return [detached for outcome in outcomes for detached in outcome.value or ()]


def _fetch_store(connection: Connection, folder: Path) -> Path:
    copied = f"{CONTROL}/fetched"
    connection.check(
        f"rm -rf {copied} && mkdir {copied} && "
        f"python3 -I -S -c {shlex.quote(_COPY)} {CONTROL}/home/{STORE} {copied}/{STORE}"
    )
    connection.fetch_files(copied, [STORE], folder)
    return folder / STORE


def _kept_checkpoints(cluster: Cluster) -> str:
    """Return where the checkpoints of a training are that has lost its instances; empty for nowhere."""
    checkpoints = read_recipe(cluster.recipe_text, cluster.recipe_path).checkpoints
    return f"the next up of its recipe resumes from its checkpoints in {checkpoints}; " if checkpoints else ""
