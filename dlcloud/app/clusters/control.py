"""`dlcloud control`: an instance controls the work of its own cluster.

The controller, to which `dlcloud up --detach` has handed its cluster over, or which has taken it over from
one that was lost, runs this until the work has ended. It keeps itself, for the results.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlcloud.app.clusters.experiment import experiment_of
from dlcloud.app.clusters.hand_over import local_variables
from dlcloud.app.clusters.up import Up
from dlcloud.app.clusters.workload import RecipeWorkload, read_workload
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import acquire_for_command
from dlcloud.app.results.stored_results import StoredResults
from dlcloud.app.results.training import print_training
from dlcloud.app.terminal.screen import printing, say
from dlcloud.app.termination import end_later, find_failed, terminating
from dlcloud.detached.handover import HandOver
from dlcloud.detached.standby import StandbyPreparer, WatchedStandbys
from dlcloud.elastic.controller import TrainingControl
from dlcloud.launch.acquire import resolve_cluster
from dlcloud.launch.data_access import prepare_access, replicating
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import DlcloudError, RecipeError
from dlcloud.model.events import PREFLIGHT, Info, Warned, stage
from dlcloud.planning.plan import Plan
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, render
from dlcloud.store.clusters import SUCCESSION


def run(context: Context, *, recipe: str, name: str, cidrs: tuple[str, ...]) -> None:
    """Do the work of the cluster that this instance belongs to, and end all instances but this one.

    Raises:
        RecipeError: This is no instance of such a cluster.
    """
    workload = read_workload(context, recipe)
    cluster = resolve_cluster(workload.file, name=name, store=context.store)
    if cluster is None or not context.controller_instance_id:
        raise RecipeError("control is for the instances of a detached cluster", "dlcloud up --detach")
    term = _term(context, cluster)
    plan = _plan(context, workload, cluster, cidrs, is_successor=term > 0)
    say(render(plan_report(plan), Format.TABLE) + "\n", err=True)
    with acquire_for_command(context, workload.file, name=name) as acquired:
        launcher = context.machines.launcher(acquired.cluster)
        failed_s = workload.recipe.keep.failed_s
        with _end_others_at_end(context, launcher, keep=plan.keep or acquired.kept, failed_s=failed_s):
            if term and workload.is_elastic:
                members = launcher.reconcile()
            else:
                prepare_access(launcher, workload.recipe)
                members = launcher.launch(plan).members
            context.paths.in_charge(launcher.cluster_id).touch()
            with replicating(launcher, workload.recipe):
                if workload.is_elastic:
                    control = _own_control(context, launcher, workload, plan, term=term)
                    workload.train(launcher, plan, members, control)
                else:
                    _measure(context, launcher, workload, plan, members)
    if workload.is_elastic:
        # Only now is the bill of every other instance known.
        print_training(context, cluster.name, Format.TABLE, command="control")


def _measure(
    context: Context, launcher: Launcher, workload: RecipeWorkload, plan: Plan, members: list[Member]
) -> None:
    """Run the workload or the experiment, while a few of the other instances stand by."""
    experiment = experiment_of(context, workload, fresh=False, retry_failed=False)
    digest = "" if experiment is None else experiment.records.digest
    watched = WatchedStandbys(
        preparer=_preparer(context, launcher, workload, plan, experiment=digest),
        own=context.controller_instance_id,
        environment=workload.environment,
    )
    up = Up(
        context=context,
        workload=workload,
        show=printing(Format.TABLE),
        experiment=experiment,
        name=launcher.cluster.name,
        cidrs=plan.cidrs,
    )
    results = StoredResults(context=context, launcher=launcher, recipe=workload.recipe)
    with watched.kept_ready(), results.kept():
        up.measure(launcher, plan, members)


def _plan(
    context: Context,
    workload: RecipeWorkload,
    cluster: Cluster,
    cidrs: tuple[str, ...],
    *,
    is_successor: bool,
) -> Plan:
    workload.check()
    _ = workload.environment
    with stage(context.emit, context.clock, PREFLIGHT):
        launcher = context.machines.launcher(cluster)
        # A successor first continues with those that are there.
        size = len(launcher.members()) if is_successor and workload.is_elastic else None
        return launcher.plan(workload.recipe, cidrs=cidrs, size=size)


def _term(context: Context, cluster: Cluster) -> int:
    """Return the term in which this instance took the control of its cluster over; 0: it did not."""
    intents = context.clusters.intents(cluster.cluster_id, SUCCESSION)
    return int(intents[-1].detail) if intents else 0


def _own_control(
    context: Context, launcher: Launcher, workload: RecipeWorkload, plan: Plan, *, term: int
) -> TrainingControl:
    """Return what the controller of its own cluster adds; `term` is that in which it took over, or 0."""
    preparer = _preparer(context, launcher, workload, plan)
    # What was rehearsed before is not rehearsed again by the next controller.
    return TrainingControl(
        prepare=preparer.prepare, term=term, rehearsal=None if term else workload.rehearsal()
    )


def _preparer(
    context: Context, launcher: Launcher, workload: RecipeWorkload, plan: Plan, *, experiment: str = ""
) -> StandbyPreparer:
    """Return what prepares other instances to control the cluster; `experiment` is the recipe's digest."""
    return StandbyPreparer(
        hand_over=HandOver(managed=launcher, database=context.database, experiment=experiment),
        recipe=workload.recipe,
        recipe_folder=workload.folder,
        cidrs=plan.cidrs,
        variables=local_variables(context, workload.recipe),
    )


@contextmanager
def _end_others_at_end(
    context: Context, launcher: Launcher, *, keep: bool, failed_s: float
) -> Iterator[None]:
    """Terminate all instances but this one when the block ends or fails: it holds the results.

    With `failed_s`, the instance of the newest run that failed stays up so long. An interrupt comes from the
    command that destroys the cluster, and is left to it.
    """
    name, emit, own = launcher.cluster.name, launcher.emit, context.controller_instance_id

    def terminate_others(kept: Sequence[str] = ()) -> None:
        with terminating(launcher, keeping=[own, *kept]):
            members = launcher.reconcile()
            launcher.shrink([m for m in members if m.instance.instance_id not in {own, *kept}])
        launcher.mark_ready()

    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        emit(Warned(message=f"failed ({error}): terminating all instances but this one"))
        try:
            terminate_others(_keep_failed(launcher, own, failed_s))
        except DlcloudError as second:
            emit(Warned(message=f"the other instances are not terminated: {second.message}"))
        raise
    if not keep:
        terminate_others()
    launcher.mark_ready()
    emit(Info(message=f"the results wait here: dlcloud down {name} downloads them"))


def _keep_failed(launcher: Launcher, own: str, seconds: float) -> list[str]:
    """Keep the instance of the newest run that failed for a while; return its id, if it is not this one."""
    failed = find_failed(launcher, launcher.members()) if seconds else None
    if failed is None or failed.instance.instance_id == own:
        return []
    try:
        end_later(launcher, failed, seconds)
    except DlcloudError as error:
        launcher.emit(Warned(message=f"the instance of the failed run is not kept: {error.message}"))
        return []
    return [failed.instance.instance_id]
