"""The part of `dlcloud up` for detached clusters: before the hand-over, and on the instance after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dlcloud.cli.context import Context
from dlcloud.cli.lifecycle import destroy_on_failure, detached_error, warn_of_remainder
from dlcloud.detached.handover import HandOver
from dlcloud.detached.standby import StandbyPreparer
from dlcloud.elastic.run import Control
from dlcloud.launch.acquire import ClusterLock, RecipeFile, lock_cluster
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.storage import prepare_access
from dlcloud.local.site import ENDPOINT_VARIABLE, TOKEN_VARIABLE
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import DlcloudError, InstanceError
from dlcloud.model.events import Notice, Warned
from dlcloud.planning.plan import Plan
from dlcloud.planning.resize import coordinator
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.table import Format, Report, Section, render


def detach(
    context: Context,
    launcher: Launcher,
    acquired: ClusterLock,
    file: RecipeFile,
    *,
    plan: Plan,
    environment: JobEnvironment,
) -> None:
    """Launch what is missing and hand the cluster over, or finish a hand-over that was cut off.

    Raises:
        CloudError, InstanceError: The launch failed; the launched instances are terminated.
    """
    hand_over = HandOver(managed=launcher, database=context.database)
    if hand_over.finish():
        return
    with destroy_on_failure(launcher, acquired):
        prepare_access(launcher, file.recipe)
        member = coordinator(launcher.launch(plan).members)
        if member is None:
            raise InstanceError(f"{launcher.cluster.name} has no on-demand instance to hand it over to")
        hand_over.start(
            member,
            file.recipe,
            Path(file.path).parent,
            cidrs=plan.cidrs,
            variables=_local_variables(context, file.recipe),
            environment=environment,
        )


def refuse_detached(context: Context, launcher: Launcher) -> None:
    """Finish a hand-over that was cut off.

    Raises:
        RecipeError: The coordinator is in charge.
    """
    if HandOver(managed=launcher, database=context.database).finish():
        controller = launcher.store.clusters.controller_instance_id(launcher.cluster_id)
        raise detached_error(launcher.cluster, controller or "")


def restart_dead_controller(
    context: Context, cluster: Cluster, environment: Callable[[], JobEnvironment]
) -> None:
    """Start the controller of a detached cluster again if it was killed; only then its secrets are needed.

    Raises:
        UnreachableError: The instance is gone, or does not answer.
        InstanceError: Its controller does not come up any more.
    """
    detached = context.detached.find(cluster.cluster_id)
    if detached is not None:
        with (
            lock_cluster(cluster, paths=context.paths),
            context.detached.log_in(detached) as session,
        ):
            hand_over = HandOver(managed=context.launcher(cluster), database=context.database)
            hand_over.restart_dead(session.connection, environment)


def own_control(context: Context, launcher: Launcher, file: RecipeFile, plan: Plan, *, term: int) -> Control:
    """Return what the controller of its own cluster adds; `term` is that in which it took over, or 0."""
    preparer = StandbyPreparer(
        hand_over=HandOver(managed=launcher, database=context.database),
        recipe=file.recipe,
        recipe_folder=Path(file.path).parent,
        cidrs=plan.cidrs,
        variables=_local_variables(context, file.recipe),
    )
    return Control(prepare=preparer.prepare, term=term)


@contextmanager
def control_here(context: Context, launcher: Launcher, *, keep: bool) -> Iterator[None]:
    """Terminate all instances but this one when the block ends or fails: it holds the results.

    For the `up` that an instance runs of its own cluster. An interrupt comes from the command that destroys
    the cluster, and is left to it.
    """
    name, emit = launcher.cluster.name, launcher.emit

    def terminate_others() -> None:
        with warn_of_remainder(launcher):
            members = launcher.reconcile()
            launcher.shrink([m for m in members if m.instance.instance_id != context.controller_instance_id])
        launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)

    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        emit(Warned(message=f"failed ({error}): ending all instances but this one"))
        try:
            terminate_others()
        except DlcloudError as second:
            emit(Warned(message=f"the other instances are not ended: {second.message}"))
        raise
    if not keep:
        terminate_others()
    launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)
    emit(Notice(message=f"the results wait here: dlcloud down {name} brings them home"))


def print_detached(context: Context, cluster: Cluster, output: str) -> None:
    """Print which instance controls the cluster, and how to watch it from anywhere."""
    controller = context.clusters.controller_instance_id(cluster.cluster_id) or ""
    name = cluster.name
    rows = [
        (f"dlcloud status {name}", "what is up, and what it has cost so far"),
        (f"dlcloud logs -f {name}", "what the training prints"),
        (f"dlcloud training {name}", "sizes, pauses, causes, cost"),
        (f"dlcloud resize {name} N", "more or fewer workers"),
        (f"dlcloud down {name}", "bring the results home, end everything"),
    ]
    section = Section(
        heading=f"{name} is controlled by its own instance {controller}; this machine may be off",
        titles=("from any machine with the account", ""),
        rows=rows,
        notes=["results that are not fetched end with that instance, by the recipe's budget"],
    )
    record = {
        "cluster": name,
        "cluster_id": cluster.cluster_id,
        "controller": controller,
        "region": cluster.region,
    }
    click.echo(render(Report(command="up", records=[record], sections=[section], empty=""), Format(output)))


def _local_variables(context: Context, recipe: Recipe) -> dict[str, str]:
    """Return the environment by which the instance finds the local EC2, and disturbs it in a rehearsal."""
    if recipe.cloud != "local":
        return {}
    endpoint = context.local_endpoint()
    token = {TOKEN_VARIABLE: endpoint.control.token} if recipe.rehearsal else {}
    return {ENDPOINT_VARIABLE: endpoint.url, **token}
