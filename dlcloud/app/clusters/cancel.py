"""`dlcloud cancel`: stop a run, and keep its cluster.

The `up` in charge of the cluster sees that the program has ended, downloads what it wrote as after any failed
run, and finds the intent that is stored here before anything is stopped: so it leaves the cluster up.
"""

from dlcloud.analysis.result import Run, RunState
from dlcloud.app.clusters.members import find_members
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.launch.remote_jobs import folder_of
from dlcloud.launch.setup import JOB
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import RecipeError
from dlcloud.report.table import Cell, Format, Report, Section, render
from dlcloud.store.clusters import CANCEL
from dlcloud.system.parallel import all_or_raise, fan_out


def run(context: Context, *, name: str = "", output: str) -> None:
    """Stop the programs of a run on all instances of its cluster.

    Args:
        context: The collaborators.
        name: A run, a cluster (the beginning of its name will do) or an instance; by default the only run
            that is running.
        output: The format.

    Raises:
        RecipeError: Nothing of that name is running, or it cannot be stopped alone.
    """
    running = [
        run
        for run in context.runs.own()
        if run.state is RunState.RUNNING
        if run.cluster_name.startswith(name) or name in {run.run_id, run.instance_id}
    ]
    clusters = sorted({run.cluster_name for run in running})
    if not running:
        for cluster in context.clusters.active():
            if cluster.name.startswith(name):
                _refuse_detached(context, cluster)
        raise RecipeError(f"nothing is running{f' on {name}' if name else ''}", "dlcloud status")
    if len(clusters) > 1:
        message = f"runs are running on several clusters: {', '.join(clusters)}"
        raise RecipeError(message, f"name one, as in dlcloud cancel {clusters[0]}")
    cluster = context.find_cluster(running[0].cluster_id)
    _refuse_detached(context, cluster)
    if any(run.experiment for run in running):
        message = f"{cluster.name} runs trials of an experiment"
        raise RecipeError(message, "Ctrl-C in its up; the next up runs the trials that are left")

    members = {member.instance.instance_id: member for member in find_members(context, cluster, "")}
    dialer = context.machines.admitting_dialer(cluster)

    def stop(run: Run) -> None:
        connection = dialer.dial(members[run.instance_id].instance.endpoint(cluster.user))
        connection.check(f"{JOB} stop {folder_of(run)}")

    context.clusters.begin_intent(cluster.cluster_id, CANCEL, running[0].run_id, context.clock.now())
    all_or_raise(fan_out(stop, [run for run in running if run.instance_id in members], width=None))
    message = f"stopped {', '.join(run.run_id for run in running)}; {cluster.name} stays up"
    record: dict[str, Cell] = {"cluster": cluster.name, "stopped": len(running)}
    section = Section(heading="", titles=("done",), rows=[(message,)])
    say(
        message
        if output == Format.TABLE
        else render(Report(command="cancel", records=[record], sections=[section], empty=""), Format(output))
    )


def _refuse_detached(context: Context, cluster: Cluster) -> None:
    if context.clusters.controller_instance_id(cluster.cluster_id):
        message = f"{cluster.name} is controlled by its own instance"
        raise RecipeError(message, f"dlcloud down {cluster.name} downloads its results and terminates it")
