"""The first steps of a command with a cluster: plan it, ask before money is spent, acquire it.

How the cluster terminates is in `app.termination`.
"""

import sys
from collections.abc import Mapping, Sequence

from dlcloud.app.budget import hold_month
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm
from dlcloud.app.termination import destroy_cluster
from dlcloud.launch.acquire import ClusterLock, acquire_cluster, lock_cluster, new_cluster, resolve_cluster
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.preflight import share_questions
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import BudgetError, CloudError, RecipeError, StoreError
from dlcloud.model.events import Info
from dlcloud.planning.plan import Plan
from dlcloud.planning.regions import rank_regions
from dlcloud.recipe.recipe import Recipe, RecipeFile
from dlcloud.system.parallel import fan_out


def launcher_for(context: Context, file: RecipeFile, *, name: str = "") -> Launcher:
    """Return what launches the cluster that an `up` of this recipe works on."""
    cluster = resolve_cluster(file, name=name, store=context.store)
    return context.machines.launcher(cluster or new_cluster(file, name=name, clock=context.clock))


def plan_everywhere(
    places: Mapping[str, tuple[Launcher, Recipe]], *, cidrs: Sequence[str], size: int | None = None
) -> list[Plan]:
    """Plan in all Regions in parallel; return the plans, the cheapest first. EC2 would carry out that one.

    Args:
        places: By Region, what launches there, and the recipe of there.
        cidrs: As for `Launcher.plan`.
        size: Likewise.

    Raises:
        CloudError: Every Region refuses.
    """
    launcher, recipe = next(iter(places.values()))
    shared = share_questions(recipe, launcher.cloud, launcher.account, [*places])

    def plan_in(region: str) -> Plan:
        launcher, recipe = places[region]
        return launcher.plan(recipe, cidrs=cidrs, size=size, shared=shared)

    outcomes = fan_out(plan_in, [*places], failures=CloudError)
    plans = {outcome.item: outcome.value for outcome in outcomes if outcome.value is not None}
    refusals = {one.item: one.error for one in outcomes if isinstance(one.error, CloudError)}
    while True:
        first, *others = rank_regions(plans, refusals)
        launcher, recipe = places[first.region]
        try:
            return [launcher.check(first, recipe), *others]
        except CloudError as error:
            refusals[first.region] = error
            del plans[first.region]


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
        if not file.is_of(cluster) or cluster.state is ClusterState.READY:
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
