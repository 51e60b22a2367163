"""Being in charge of a cluster: claim it, bring it up, and take it down whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager

from dlcloud.bench.parallel import StoppedError
from dlcloud.cli.context import Context
from dlcloud.cli.ending import end_cluster
from dlcloud.core.cluster import Cluster, ClusterState
from dlcloud.core.errors import DlcloudError, RecipeError, StoreError
from dlcloud.core.events import Emit, Notice, Warned
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.remote import Dial
from dlcloud.launch.lock import ClusterLock, RecipeFile, acquire_cluster, first_boot, lock_existing
from dlcloud.launch.members import reconcile_members
from dlcloud.launch.shrink import shrink
from dlcloud.launch.up import ConnectedMembers, bring_up


def acquire_for_command(context: Context, file: RecipeFile, *, name: str = "") -> ClusterLock:
    """Take charge of a cluster; finish first what an earlier command left half taken down.

    Raises:
        StoreError, RecipeError: As `acquire_cluster`.
    """
    claim = acquire_cluster(
        file, name=name, clusters=context.clusters, paths=context.paths, clock=context.clock
    )
    controller = context.clusters.controller(claim.cluster.cluster_id)
    if controller is not None:
        claim.lock.release()
        raise handed_over(claim.cluster, controller)
    if claim.cluster.state is ClusterState.STOPPING:
        end_cluster(context, claim.cluster)
        claim.lock.release()
        return acquire_for_command(context, file, name=name)
    if claim.unfinished:
        message = f"going on with {claim.cluster.name}, which an earlier {context.command} left unfinished"
        context.emit(Notice(message=message))
    return claim


def handed_over(cluster: Cluster, controller: str) -> RecipeError:
    """Return the error that says that a cluster is not to be controlled from here."""
    return RecipeError(
        f"{cluster.name} is controlled by its own instance {controller}",
        f"dlcloud status {cluster.name}; dlcloud down {cluster.name} brings its results home and ends it",
    )


def end_unfinished(context: Context, file: RecipeFile) -> None:
    """Take down what a command that was killed left of a cluster on which nothing more is to be done."""
    for cluster in context.clusters.active():
        if cluster.recipe_hash != file.recipe.hash or cluster.state is ClusterState.READY:
            continue
        try:
            claim = lock_existing(cluster, paths=context.paths)
        except StoreError:
            continue  # another command is in charge of it
        try:
            current = context.clusters.find(cluster.cluster_id)
            if current is not None and current.state is not ClusterState.DOWN:
                context.emit(Notice(message=f"taking {cluster.name} down, which was left unfinished"))
                end_cluster(context, current)
        finally:
            claim.lock.release()


def brought_up(
    context: Context, cluster: Cluster, plan: Plan, *, cloud: Cloud, dial: Dial, clock: Clock, emit: Emit
) -> ConnectedMembers:
    """Bring up what the plan says.

    Args:
        context: The collaborators that all flows share.
        cluster: Which we are in charge of.
        plan: What it is to be.
        cloud: Where.
        dial: Reaches its instances.
        clock: For this flow; may refuse to wait once it was stopped.
        emit: The same.

    Raises:
        CloudError, InstanceError: As `bring_up`.
    """
    reached = bring_up(
        cluster,
        plan,
        first_boot=lambda minutes: first_boot(
            cluster, life_minutes=minutes, idle_minutes=plan.idle_minutes, paths=context.paths
        ),
        cloud=cloud,
        clusters=context.clusters,
        dial=dial,
        clock=clock,
        emit=emit,
    )
    context.clusters.set_state(cluster.cluster_id, ClusterState.RUNNING)
    return reached


@contextmanager
def taken_down_after(context: Context, claim: ClusterLock, *, keep: bool) -> Iterator[None]:
    """Take the cluster down when the block ends or fails; keep it only where that is wanted."""
    cluster = claim.cluster
    with taken_down_on_failure(context, claim):
        yield
    if keep:
        context.clusters.set_state(cluster.cluster_id, ClusterState.READY)
        context.emit(Notice(message=f"{cluster.name} is kept up: dlcloud down {cluster.name} ends it"))
    else:
        end_cluster(context, cluster)


@contextmanager
def taken_down_on_failure(context: Context, claim: ClusterLock) -> Iterator[None]:
    """Take the cluster down when the block fails; one that was kept up before stays."""
    cluster = claim.cluster
    try:
        yield
    except BaseException as error:
        if claim.kept:
            context.clusters.set_state(cluster.cluster_id, ClusterState.READY)
            context.emit(Warned(message=f"{cluster.name} was kept up before and stays up"))
            raise
        stopped = isinstance(error, KeyboardInterrupt | StoppedError)
        reason = "interrupted" if stopped else f"failed ({error})"
        context.emit(Warned(message=f"{reason}: taking {cluster.name} down, so that nothing is left running"))
        _down_or_say(context, cluster)
        raise


@contextmanager
def others_ended_after(context: Context, claim: ClusterLock, *, keep: bool) -> Iterator[None]:
    """End all instances but this one when the block ends or fails: it holds the results for whoever comes.

    For the `up` that an instance runs of its own cluster. Who interrupts it takes the cluster down.
    """
    cluster = claim.cluster
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        context.emit(Warned(message=f"failed ({error}): ending all instances but this one"))
        try:
            _end_others(context, cluster)
        except DlcloudError as second:
            context.emit(Warned(message=f"others may still be up: {second.message}"))
        raise
    if not keep:
        _end_others(context, cluster)
    context.clusters.set_state(cluster.cluster_id, ClusterState.READY)
    context.emit(Notice(message=f"the results wait here: dlcloud down {cluster.name} brings them home"))


def _end_others(context: Context, cluster: Cluster) -> None:
    cloud = context.cloud(cluster.cloud, cluster.region)
    members = reconcile_members(cluster, cloud=cloud, clusters=context.clusters, clock=context.clock)
    others = [member for member in members if member.instance.instance_id != context.controller]
    shrink(cluster, others, cloud=cloud, clusters=context.clusters, clock=context.clock, emit=context.emit)
    context.clusters.set_state(cluster.cluster_id, ClusterState.READY)


def _down_or_say(context: Context, cluster: Cluster) -> None:
    """Take down after a failure; a second failure must not hide the first, but what is left is named."""
    try:
        end_cluster(context, cluster)
    except (DlcloudError, KeyboardInterrupt) as error:
        told = error.message if isinstance(error, DlcloudError) else "interrupted again"
        message = f"{cluster.name} may still be up and cost money ({told}): dlcloud down {cluster.name}"
        context.emit(Warned(message=message))
