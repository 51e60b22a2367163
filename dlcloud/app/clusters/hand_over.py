"""`dlcloud up --detach`: a cluster is launched, and handed over to one of its own instances."""

from collections.abc import Callable

from dlcloud.app.clusters.experiment import experiment_of
from dlcloud.app.clusters.up import Up, is_trained
from dlcloud.app.clusters.workload import RecipeWorkload, read_workload
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import acquire_for_command, confirm_spending
from dlcloud.app.terminal.screen import printing, say
from dlcloud.app.termination import destroy_on_failure
from dlcloud.detached.handover import HandOver, check_detachable, settle_recipe
from dlcloud.launch.acquire import ClusterLock, lock_cluster, resolve_cluster
from dlcloud.launch.data_access import prepare_access
from dlcloud.launch.launcher import Launcher
from dlcloud.local.site import ENDPOINT_VARIABLE, TOKEN_VARIABLE
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import CapacityError, InstanceError, QuotaError
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.planning.plan import Plan
from dlcloud.planning.regions import dearest
from dlcloud.planning.resize import coordinator
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, Report, Section, render


def run(
    context: Context,
    *,
    recipe: str,
    overrides: Overrides,
    name: str = "",
    cidrs: tuple[str, ...] = (),
    dry_run: bool = False,
    yes: bool = False,
    keep: bool = False,
    fresh: bool = False,
    retry_failed: bool = False,
    output: str,
) -> None:
    """Hand a cluster over to one of its own instances, and print how to watch it.

    The arguments are those of `dlcloud.app.clusters.up.run`.
    """
    if dry_run:
        context.change_nothing()
    show = printing(output)
    workload = read_workload(context, recipe, overrides, keep=keep)
    cluster = resolve_cluster(workload.file, name=name, store=context.store)
    if not dry_run and resume_detached(context, cluster, workload, output):
        return
    check_detachable(workload.recipe)
    experiment = experiment_of(context, workload, fresh=fresh, retry_failed=retry_failed)
    if experiment is not None and experiment.is_over(show):
        return
    if cluster is None and is_trained(workload, show):
        return
    up = Up(context=context, workload=workload, show=show, experiment=experiment, name=name, cidrs=cidrs)
    plan = up.plan(cluster)
    if dry_run:
        say(render(plan_report(plan, detached=True), Format(output)))
        return
    say(render(plan_report(plan, detached=True), Format.TABLE) + "\n", err=True)
    confirm_spending(context, dearest([plan, *up.moves.elsewhere]), yes=yes, cluster=cluster)
    while (launched := _launch_detached(up, plan)) is None:
        plan = up.move_on(plan)
    print_detached(context, launched, output, is_elastic=workload.is_elastic)


def _launch_detached(up: Up, plan: Plan) -> Cluster | None:
    """Hand the cluster of an `up` over; None if its region gave none and another one can be tried."""
    context, workload, experiment = up.context, up.workload, up.experiment
    try:
        with acquire_for_command(context, workload.file, name=up.name) as acquired:
            launcher = context.machines.launcher(acquired.cluster)
            digest = ""
            if experiment is not None:
                experiment.begin_anew()
                digest = experiment.records.digest
            hand_over(context, launcher, acquired, workload, plan=plan, experiment=digest)
    except (CapacityError, QuotaError):
        if not up.moves.can_leave(acquired.cluster, plan, workload.recipe):
            raise
        return None
    return acquired.cluster


def hand_over(
    context: Context,
    launcher: Launcher,
    acquired: ClusterLock,
    workload: RecipeWorkload,
    *,
    plan: Plan,
    experiment: str = "",
) -> None:
    """Launch what is missing and hand the cluster over, or finish a hand-over that was cut off.

    `experiment` is the digest of the recipe's.

    Raises:
        CloudError, InstanceError: The launch failed; the launched instances are terminated.
    """
    hand = HandOver(managed=launcher, database=context.database, experiment=experiment)
    if not hand.finish():
        with destroy_on_failure(launcher, acquired):
            prepare_access(launcher, workload.recipe)
            member = coordinator(launcher.launch(plan).members)
            if member is None:
                raise InstanceError(f"{launcher.cluster.name} has no on-demand instance to hand it over to")
            hand.start(
                member,
                settle_recipe(workload.recipe, plan.machine.image.image_id, plan.machine.network.groups),
                workload.folder,
                image=plan.machine.image,
                cidrs=plan.cidrs,
                variables=local_variables(context, workload.recipe),
                environment=workload.environment,
            )


def resume_detached(context: Context, cluster: Cluster | None, workload: RecipeWorkload, output: str) -> bool:
    """Look after a cluster that an earlier `up --detach` left to its coordinator; False if none did."""
    if cluster is None or context.clusters.controller_instance_id(cluster.cluster_id) is None:
        return False
    restart_dead_controller(context, cluster, lambda: workload.environment)
    print_detached(context, cluster, output, is_elastic=workload.is_elastic)
    return True


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
            hand_over = HandOver(managed=context.machines.launcher(cluster), database=context.database)
            hand_over.restart_dead(session.connection, environment)


def print_detached(context: Context, cluster: Cluster, output: str, *, is_elastic: bool) -> None:
    """Print which instance controls the cluster, and how to watch it from anywhere."""
    controller = context.clusters.controller_instance_id(cluster.cluster_id) or ""
    name = cluster.name
    training = (
        (f"dlcloud training {name}", "sizes, pauses, causes, cost"),
        (f"dlcloud resize {name} N", "more or fewer workers"),
    )
    rows = [
        (f"dlcloud status {name}", "what is up, and what it has cost so far"),
        (f"dlcloud logs -f {name}", "what its program prints"),
        *(training if is_elastic else ()),
        (f"dlcloud down {name}", "download the results, terminate everything"),
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
    say(render(Report(command="up", records=[record], sections=[section], empty=""), Format(output)))


def local_variables(context: Context, recipe: Recipe) -> dict[str, str]:
    """Return the environment by which the instance finds the local EC2, and disturbs it in a rehearsal."""
    if recipe.cloud != "local":
        return {}
    endpoint = context.local_endpoint()
    token = {TOKEN_VARIABLE: endpoint.control.token} if recipe.rehearsal else {}
    return {ENDPOINT_VARIABLE: endpoint.url, **token}
