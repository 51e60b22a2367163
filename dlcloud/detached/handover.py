"""Hand a cluster over to one of its own instances, which then controls it as an `up` here would.

The instance gets dlcloud, the recipe and a home that knows this cluster only, and runs the same `up` there.
Whenever the launcher dies, either no `up` manages the cluster there, and the next one here begins again; or
that `up` does, and the next one here finds it so. There are never two.

Not every recipe can run without a launcher (`check_detachable`), and on the instance it reads differently:
its files and secrets are elsewhere there (`relocate_recipe`, `settle_recipe`).
"""

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from dlcloud.detached.state import copy_cluster
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import INHERITED, LOG_TAIL_LINES, parse_job_state, start_job
from dlcloud.launch.setup import FOLDER, JOB, prepare
from dlcloud.launch.user_files import check_files
from dlcloud.model.clock import Clock, wait_until
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG, ClusterState, Member
from dlcloud.model.errors import DlcloudError, InstanceError, RecipeError, StoreError
from dlcloud.model.events import Emit, Info, stage
from dlcloud.model.instance import Image
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.remote import Connection
from dlcloud.model.secret_source import CONTROLLER_PREFIX
from dlcloud.model.untrusted import printable
from dlcloud.planning.policies import controller_policy, join_policies, results_policy, storage_policy
from dlcloud.planning.storage import reads_buckets, results_uri
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import IGNORE_FILE
from dlcloud.recipe.workload import Setup
from dlcloud.resources.texts import outside_package
from dlcloud.ssh.keys import KnownHosts, fingerprint
from dlcloud.store.clusters import HAND_OVER, IN_CHARGE
from dlcloud.store.database import Database

CONTROL = f"{FOLDER}/control"
"""The folder on the instance of dlcloud, the recipe and the home, below its user's home."""

HOME = f"{CONTROL}/home"
"""The home of dlcloud there."""

STAND_BY = "stand-by"
"""The program in CONTROL by which an instance takes control; the trainer's agent runs it."""

COMMAND = f"{CONTROL}/dlcloud"
"""Runs any command of dlcloud there, on the home that was handed over."""

JOB_FOLDER = f"{FOLDER}/runs/control"
"""The controller is a job like any other: the instance's watchdog takes it for work."""

OLDEST_PYTHON = "3.11"
"""As `requires-python` in pyproject.toml."""

RUNTIME = ("boto3", "click", "packaging", "paramiko", "pathspec", "pydantic", "pyyaml", "rich", "tabulate")
"""As `dependencies` in pyproject.toml."""

GIVEN_UP = "given up"
"""The outcome of a hand-over after which no `up` manages the cluster there."""

CHARGE_TIMEOUT_S = 300.0
POLL_S = 0.5
DIAL_WAIT_S = 20.0

SIGNALLED = 128
"""Greater exit statuses are those of a process that a signal has ended."""
STOPPED = (130, 143)
"""The exit statuses of a controller that was asked to end, by SIGINT or SIGTERM."""
_RESTARTED = """\
asked=
trap asked=yes INT TERM
for delay in 2 4 8 16 32 -; do
  {command}
  status=$?
  if [ $status -le 128 ] || [ $status = 130 ] || [ $status = 143 ] || [ -n "$asked" ] || [ $delay = - ]
  then exit $status; fi
  echo "the controller was killed (status $status): starting it again in $delay s" >&2
  sleep $delay
done
"""
"""The job of a controller: one that was killed, as for want of memory, continues its work. One that was asked
to end does not.

The trap lets the shell end after the controller, never before: who stops the job must find it ended.
"""
_START = 'import sys; sys.argv[0] = "dlcloud"; from dlcloud.cli.entry import main; main()'


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Hands one cluster over, which is up and in the database.

    `experiment` is the digest of that which it runs: the instance gets to know its earlier trials.
    """

    managed: ManagedCluster
    database: Database
    experiment: str = ""

    def start(
        self,
        member: Member,
        recipe: Recipe,
        recipe_folder: Path,
        *,
        image: Image,
        cidrs: Sequence[str],
        variables: Mapping[str, str],
        environment: JobEnvironment = INHERITED,
    ) -> None:
        """Hand over, and return once the instance is in charge.

        The paths of the recipe are relative to `recipe_folder`; `cidrs` are the networks that may reach the
        instances, `variables` are of the environment of the instance's dlcloud, and `environment` of the
        workers: the controller has its secrets in memory.

        Raises:
            InstanceError: The instance could not be prepared, or its controller did not come up.
            CloudError: It could not be given its role.
        """
        managed, cluster, instance_id = self.managed, self.managed.cluster, member.instance.instance_id
        clock, emit, clusters = managed.clock, managed.emit, managed.store.clusters
        intent_id = clusters.begin_intent(cluster.cluster_id, HAND_OVER, instance_id, clock.now())
        connection = managed.connect(member.instance, DIAL_WAIT_S)
        self._give_role(instance_id, recipe, image)
        variables = {"DLCLOUD_CONTROLLER": instance_id, **variables}
        packages = runtime_of(recipe)
        folder = install_dlcloud(connection, variables, packages=packages, clock=clock, emit=emit)
        with stage(emit, clock, "handing the cluster over", instance_id=instance_id):
            self.send_recipe(connection, recipe, recipe_folder)
            self.send_home(connection, recipe, folder)
            self.send_commands(connection, folder, cidrs)
            # Before it begins: every controller can be found.
            host_key = self.host_key_fingerprint(instance_id)
            managed.cloud.instances.put_tags(
                [instance_id], {CONTROLLER_TAG: cluster.user, HOST_KEY_TAG: host_key}
            )
        try:
            start_job(connection, JOB_FOLDER, environment.of_controller())
            self._wait_until_in_charge(connection)
        except BaseException:
            with suppress(DlcloudError):
                connection.run(f"{JOB} stop {JOB_FOLDER}")
            raise
        clusters.end_intent(intent_id, IN_CHARGE, clock.now())

    def finish(self) -> bool:
        """Finish a hand-over that was cut off; True if the instance is in charge.

        Raises:
            UnreachableError: The instance lives, and does not answer: it is not known.
            InstanceError: Its controller did not come up.
        """
        clusters, clock = self.managed.store.clusters, self.managed.clock
        begun = clusters.last_hand_over(self.managed.cluster_id)
        if begun is None or begun.outcome is not None:
            return begun is not None and begun.outcome == IN_CHARGE
        instance = self.managed.describe_instances().get(begun.detail)
        outcome = GIVEN_UP
        if instance is not None and instance.alive:
            connection = self.managed.connect(instance, DIAL_WAIT_S)
            state = job_state(connection)
            if state == "running":
                message = "completing the interrupted hand-over"
                self.managed.emit(Info(message=message, instance_id=begun.detail))
                self._wait_until_in_charge(connection)
            if state == "running" or self._is_in_charge(connection):
                outcome = IN_CHARGE
            else:
                # A start that is still on its way finds no command to run.
                connection.check(f"rm -rf {JOB_FOLDER}")
        clusters.end_intent(begun.intent_id, outcome, clock.now())
        return outcome == IN_CHARGE

    def restart_dead(self, connection: Connection, environment: Callable[[], JobEnvironment]) -> None:
        """Start the controller again, as `start` does, where it was killed.

        Raises:
            InstanceError: It did not come up.
        """
        if job_state(connection) != "lost":
            return
        connection.check(f"rm -f {JOB_FOLDER}/pid {JOB_FOLDER}/exit_status {CONTROL}/home/{self._mark}")
        start_job(connection, JOB_FOLDER, environment().of_controller())
        self._wait_until_in_charge(connection)

    def _give_role(self, instance_id: str, recipe: Recipe, image: Image) -> None:
        cloud, cluster = self.managed.cloud, self.managed.cluster
        message = "giving it a role for this cluster only"
        with stage(self.managed.emit, self.managed.clock, message, instance_id=instance_id):
            cloud.network.allow_peers(cloud.network.find_group(cluster.cluster_id))
            boundary = recipe.permissions_boundary
            storage = storage_policy(recipe) if reads_buckets(recipe) else ""
            groups = recipe.network.security_groups if recipe.network is not None else []
            profile = cloud.roles.put_control(
                cluster.cluster_id,
                cluster.tags,
                boundary=boundary,
                storage=storage,
                own=self._own_policy(recipe, groups, image),
            )
            cloud.instances.attach_profile(instance_id, profile)

    def _own_policy(self, recipe: Recipe, groups: Sequence[str], image: Image) -> str:
        """Return what the recipe adds to the rights of a controller."""
        cluster = self.managed.cluster
        instances = recipe.instances
        policies = [
            controller_policy(instances.types, groups, cluster.region, image=image, kms_key=instances.kms_key)
        ]
        if recipe.results is not None:
            policies.append(results_policy(results_uri(recipe, cluster.cluster_id)))
        return join_policies(policies)

    def send_recipe(self, connection: Connection, recipe: Recipe, recipe_folder: Path) -> None:
        """Send the recipe and its files, in place of all that the instance knew of a cluster."""
        connection.check(f"rm -rf {CONTROL}/recipe {CONTROL}/home {JOB_FOLDER}")
        connection.send_bytes(relocate_recipe(recipe).encode(), f"{CONTROL}/recipe/recipe.yaml")
        if recipe.workload.files is not None:
            files = check_files(recipe_folder / recipe.workload.files)
            connection.send_files(files.entries, f"{CONTROL}/recipe/{FILES}")
            # They are chosen: without their repository, the same ignore files would leave out other ones.
            connection.send_bytes(b"!*\n", f"{CONTROL}/recipe/{IGNORE_FILE}")

    def send_home(self, connection: Connection, recipe: Recipe, folder: str, home: str = HOME) -> None:
        """Send a home that knows this cluster only; `folder` is CONTROL's absolute path on the instance."""
        cluster = replace(
            self.managed.cluster,
            recipe_text=relocate_recipe(recipe),
            recipe_path=f"{folder}/recipe/recipe.yaml",
            state=ClusterState.RUNNING,
        )
        connection.send_tree(
            self.managed.store.paths.cluster(cluster.cluster_id),
            f"{home}/clusters/{cluster.cluster_id}",
            only=lambda path: path.suffix not in {".lock", ".new"} and path.name != "lock",
        )
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "store.sqlite"
            with closing(Database(path)) as target:
                copy_cluster(self.database, target, cluster, self.experiment)
            connection.send_tree(path, home)

    def send_commands(
        self, connection: Connection, folder: str, cidrs: Sequence[str], *, wait_s: float = 0.0
    ) -> None:
        """Send the command of the controller, and that by which an instance becomes one after a wait."""
        connection.send_bytes(self._command(folder, cidrs).encode(), f"{JOB_FOLDER}/command")
        words = [f"{folder}/dlcloud", "take-over", self.managed.cluster_id]
        script = f"#!/bin/sh\nsleep {wait_s:g}\nexec {shlex.join(words)}\n"
        connection.send_bytes(script.encode(), f"{CONTROL}/{STAND_BY}", mode=0o700)

    def _command(self, folder: str, cidrs: Sequence[str]) -> str:
        name = self.managed.cluster.name
        words = ["control", f"{folder}/recipe/recipe.yaml", "--name", name]
        words += [word for cidr in cidrs for word in ("--cidr", cidr)]
        return _RESTARTED.format(command=shlex.join([f"{folder}/dlcloud", *words]))

    def host_key_fingerprint(self, instance_id: str) -> str:
        """Return the fingerprint of an instance's host key; raises StoreError if that is not pinned."""
        path = self.managed.store.paths.known_hosts(self.managed.cluster_id)
        key = KnownHosts(path).pinned(instance_id)
        if key is None:
            raise StoreError(f"the host key of {instance_id} is not pinned")
        return fingerprint(key)

    def _wait_until_in_charge(self, connection: Connection) -> None:
        instance_id = connection.endpoint.instance_id

        def progress() -> str:
            if self._is_in_charge(connection):
                return "in charge"
            if job_state(connection) == "running":
                return ""
            # It may have ended between the two questions.
            return "in charge" if self._is_in_charge(connection) else "ended"

        with stage(
            self.managed.emit, self.managed.clock, "waiting until it is in charge", instance_id=instance_id
        ):
            state = wait_until(progress, clock=self.managed.clock, timeout_s=CHARGE_TIMEOUT_S, poll_s=POLL_S)
            if state != "in charge":
                reason = state or f"was not in charge after {CHARGE_TIMEOUT_S:.0f} s"
                raise InstanceError(f"{instance_id}: its controller {reason}:\n{_tail(connection)}")

    def _is_in_charge(self, connection: Connection) -> bool:
        return connection.run(f"test -e {CONTROL}/home/{self._mark}").exit_status == 0

    @property
    def _mark(self) -> Path:
        paths = self.managed.store.paths
        return paths.in_charge(self.managed.cluster_id).relative_to(paths.home)


def job_state(connection: Connection) -> str:
    """Return the state of the controller's job: new, running, ended, or lost where it was killed."""
    answer = connection.run(f"test ! -e {JOB_FOLDER}/pid || {JOB} state {JOB_FOLDER}").stdout
    if not answer.strip():
        return "new"
    state, exit_status = parse_job_state(answer, connection.endpoint.instance_id)
    is_killed = (exit_status or 0) > SIGNALLED and exit_status not in STOPPED
    return "lost" if is_killed else state


def runtime_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages that dlcloud needs to control a recipe."""
    is_search = recipe.experiment is not None and recipe.experiment.search is not None
    return (*RUNTIME, "optuna") if is_search else RUNTIME


def install_dlcloud(
    connection: Connection,
    variables: Mapping[str, str],
    *,
    packages: Sequence[str],
    clock: Clock,
    emit: Emit,
) -> str:
    """Install this very dlcloud on an instance, with `variables` in its environment, or replace it there.

    `packages` are those that it needs, in the versions that are installed here.

    Returns:
        The absolute path of CONTROL on the instance.

    Raises:
        RemoteCommandError: The instance could not take it.
    """
    requirements = "\n".join(f"{name}=={version(name)}" for name in packages)
    python = prepare(connection, Setup(), requirements, clock=clock, emit=emit, minimum_python=OLDEST_PYTHON)
    with stage(emit, clock, "sending dlcloud itself", instance_id=connection.endpoint.instance_id):
        # Other users of the instance must not read the cluster's key.
        answer = connection.check(f"mkdir -p {CONTROL} && chmod 700 {CONTROL} && cd {CONTROL} && pwd")
        folder = answer.decode().strip()
        connection.send_tree(Path(__file__).parents[1], f"{CONTROL}/app/dlcloud")
        for name, texts in outside_package().items():
            connection.send_tree(texts, f"{CONTROL}/app/dlcloud/resources/{name}")
        connection.send_bytes(_script(python, folder, variables).encode(), COMMAND, mode=0o700)
    return folder


def _script(python: str, folder: str, variables: Mapping[str, str]) -> str:
    environment = {"DLCLOUD_HOME": f"{folder}/home", "PYTHONPATH": f"{folder}/app", **variables}
    environment["PYTHONFAULTHANDLER"] = "1"  # a crash in C code leaves a traceback in the log
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    # -P: the current folder, which may have a `dlcloud` of its own, is no place to import from.
    return f'#!/bin/sh\nexport {exports}\nexec {shlex.quote(python)} -P -c {shlex.quote(_START)} "$@"\n'


def _tail(connection: Connection) -> str:
    answer = connection.run(f"tail -n {LOG_TAIL_LINES} {JOB_FOLDER}/log")
    return printable(answer.stdout.decode("utf-8", "replace").rstrip())


"""The parameters of SSM that a controller's role may read."""
FILES = "files"
"""The folder next to the recipe on the instance; its content is that of `workload.files` here."""


def relocate_recipe(recipe: Recipe) -> str:
    """Return the text of the recipe as the instance reads it."""
    workload = recipe.workload
    if workload.files is not None:
        workload = workload.model_copy(update={"files": FILES})
    names = {name: f"env:{CONTROLLER_PREFIX}{name}" for name in workload.secrets}
    workload = workload.model_copy(update={"secrets": names})
    relocated = recipe.model_copy(update={"workload": workload})
    content: dict[str, Any] = relocated.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def settle_recipe(recipe: Recipe, image_id: str, groups: Sequence[str]) -> Recipe:
    """Return the recipe with the image that its role may launch, and with groups by their ids.

    Args:
        recipe: The user's.
        image_id: The image of its plan: all instances of the cluster have it, replacements too.
        groups: The ids of the user's own security groups, of its plan.
    """
    network = recipe.network
    instances = recipe.instances.model_copy(update={"image": image_id})
    # The cluster is in one Region by now, and its controller's role is for that one.
    recipe = recipe.model_copy(update={"instances": instances, "regions": [], "geography": None})
    if network is not None and network.security_groups:
        settled = network.model_copy(update={"security_groups": list(groups)})
        recipe = recipe.model_copy(update={"network": settled})
    return recipe


def check_detachable(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run without a launcher.

    Raises:
        RecipeError: It has no on-demand instance, its instances have a profile, it reads a folder of this
            machine, or its rehearsal ends the coordinator.
    """
    if recipe.instances.market != "on-demand" and not recipe.instances.on_demand_base:
        raise RecipeError(
            "--detach needs at least one on-demand instance, which launches replacements",
            "instances.on_demand_base: 1 makes one of them on-demand",
        )
    if recipe.instances.profile:
        raise RecipeError(
            f"--detach: the coordinator needs its own role, in addition to {recipe.instances.profile}",
            "an instance has one profile: omit one of the two",
        )
    if recipe.workload.checkpoints and recipe.checkpoints is None:
        raise RecipeError(
            "--detach: workload.checkpoints would be copied to this machine, which is not part of the run",
            "checkpoints: s3://BUCKET/PREFIX stores them in a bucket of yours",
        )
    if any(not item.is_remote for item in recipe.data):
        raise RecipeError(
            "--detach: later instances cannot read data from a folder of this machine",
            "copy it to a bucket: aws s3 sync FOLDER s3://BUCKET/PREFIX, and name that in data",
        )
    if any(incident.kill == "coordinator" for incident in recipe.rehearsal):
        raise RecipeError(
            "--detach: the rehearsal ends the coordinator, and the controller would end with it",
            "omit kill: coordinator, or run it without --detach",
        )
