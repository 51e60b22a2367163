"""The first steps of a command with a cluster: plan it, ask before money is spent, acquire it.

How the cluster terminates is in `app.termination`.
"""

import sys
from collections.abc import Sequence

from dlcloud.app.budget import hold_month
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm
from dlcloud.app.termination import destroy_cluster
from dlcloud.launch.acquire import ClusterLock, acquire_cluster, lock_cluster, new_cluster, resolve_cluster
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import BudgetError, RecipeError, StoreError
from dlcloud.model.events import Info
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import RecipeFile


def plan_cluster(
    context: Context, file: RecipeFile, *, name: str, cidrs: Sequence[str], size: int | None = None
) -> Plan:
    """Return the plan of the cluster that an `up` of this recipe works on; see `Launcher.plan`."""
    cluster = resolve_cluster(file, name=name, store=context.store)
    cluster = cluster or new_cluster(file, name=name, clock=context.clock)
    return context.machines.launcher(cluster).plan(file.recipe, cidrs=cidrs, size=size)


def confirm_spending(context: Context, plan: Plan, *, yes: bool, cluster: Cluster | None = None) -> None:
    """Hold the limit of the month, and ask before money is spent: not with `--yes`, or of a rehearsal.

    Args:
        context: The collaborators.
        plan: What is about to be launched.
        yes: Do not ask.
        cluster: The one that the plan continues.

    Raises:
        BudgetError: The plan could pass the limit, or stdin is not a terminal.
    """
    hold_month(context, [(plan, cluster)])
    if yes or plan.rehearsal:
        return
    if not sys.stdin.isatty():
        raise BudgetError(
            "this spends money, and stdin is not a terminal", "pass --yes to confirm, in Python yes=True"
        )
    confirm("Continue?")


def acquire_for_command(context: Context, file: RecipeFile, *, name: str = "") -> ClusterLock:
    """Acquire a cluster; first finish what an earlier command left half terminated, or in another region.

    Raises:
        StoreError, RecipeError: As `acquire_cluster`.
    """
    owner = context.owner(file.recipe.cloud, file.recipe.region)
    acquired = acquire_cluster(file, name=name, store=context.store, clock=context.clock, owner=owner)
    cluster = acquired.cluster
    try:
        context.accounts.verify(cluster)
    except BaseException:
        acquired.release()
        raise
    controller = context.clusters.controller_instance_id(cluster.cluster_id)
    if controller is not None:
        acquired.release()
        raise detached_error(cluster, controller)
    if cluster.state is ClusterState.STOPPING or cluster.region != file.recipe.region:
        destroy_cluster(context.machines.launcher(cluster))
        acquired.release()
        return acquire_for_command(context, file, name=name)
    if acquired.unfinished:
        message = f"continuing with {cluster.name}, which an earlier {context.command} left unfinished"
        context.emit(Info(message=message))
    return acquired


def detached_error(cluster: Cluster, controller_instance_id: str) -> RecipeError:
    """Return the error for a cluster that is not controlled from here."""
    return RecipeError(
        f"{cluster.name} is controlled by its own instance {controller_instance_id}",
        f"dlcloud status {cluster.name}; dlcloud down {cluster.name} downloads its results and terminates it",
    )


def destroy_unfinished(context: Context, file: RecipeFile) -> None:
    """Destroy what a killed command left of a cluster on which nothing more is to be done."""
    for cluster in context.clusters.active():
        if cluster.recipe_hash != file.recipe.hash or cluster.state is ClusterState.READY:
            continue
        if context.clusters.last_hand_over(cluster.cluster_id) is not None:
            continue  # one of its instances may manage it
        try:
            acquired = lock_cluster(cluster, paths=context.paths)
        except StoreError:
            continue  # another command manages it
        with acquired:
            current = context.clusters.find(cluster.cluster_id)
            if current is not None and current.state is not ClusterState.DOWN:
                context.emit(Info(message=f"terminating {cluster.name}, which was left unfinished"))
                destroy_cluster(context.machines.launcher(current))
