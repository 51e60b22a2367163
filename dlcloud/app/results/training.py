"""`dlcloud training`: steps, world sizes, pauses and cost of an elastic training."""

from dlcloud.app.context import Context
from dlcloud.app.results.timelines import timelines_of_runs
from dlcloud.app.terminal.screen import say
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import training_report
from dlcloud.results.training import Training, summarize_training


def run(context: Context, *, name: str, output: str) -> int | None:
    """Show the elastic training of cluster NAME (default: the newest)."""
    status = context.forward_command(name)
    if status is None:
        print_training(context, name, output)
    return status


def print_training(context: Context, name: str, output: str, *, command: str = "training") -> None:
    """Print the elastic training of a cluster.

    Args:
        context: The collaborators.
        name: The cluster's name or id; empty for the newest that trained.
        output: The format.
        command: The command that prints it.

    Raises:
        RecipeError: There is no such cluster, or it has not committed a step.
    """
    report = training_of_cluster(context, _find(context, name), command=command)
    say(render(report, Format(output)))


def training_of_cluster(context: Context, cluster: Cluster, *, command: str) -> Report:
    """Return the elastic training of a cluster.

    Raises:
        RecipeError: It has not committed a step.
    """
    training = summary_of_cluster(context, cluster)
    if training is None:
        raise RecipeError(f"{cluster.name} has committed no step yet", f"dlcloud logs {cluster.name}")
    return training_report(
        training,
        cluster=cluster.name,
        rehearsal=cluster.cloud == "local",
        command=command,
        decisions=context.clusters.decisions(cluster.cluster_id),
    )


def summary_of_cluster(context: Context, cluster: Cluster) -> Training | None:
    """Return the summary of the newest training of a cluster; None if it has not committed a step."""
    runs = {run.run_id: run for run in context.runs.of_cluster(cluster.cluster_id)}
    timelines = timelines_of_runs(context.measurements, runs)
    if not timelines:
        return None
    on_demand = {
        runs[run_id].instance_type: prices.on_demand.hourly_usd
        for run_id, prices in context.measurements.market_prices(runs).items()
        if prices.on_demand is not None
    }
    return summarize_training(
        timelines[-1],
        context.clusters.members(cluster.cluster_id),
        on_demand=on_demand,
        disk_gib=cluster.disk_gib,
        now=context.clock.now(),
    )


def _find(context: Context, name: str) -> Cluster:

    clusters = [
        cluster
        for cluster in context.clusters.all()
        if not name or name in {cluster.name, cluster.cluster_id} or cluster.name.startswith(name)
    ]
    clusters = [cluster for cluster in clusters if name in {cluster.name, cluster.cluster_id}] or clusters
    trained = [cluster for cluster in clusters if _is_elastic(cluster)]
    if trained:
        return max(trained, key=lambda cluster: cluster.created_at)
    if clusters and name:
        raise RecipeError(f"{name} is not an elastic training", f"dlcloud cost-report {name}")
    raise RecipeError(
        f"there is no cluster {name}" if name else "nothing has trained yet", "dlcloud up dynamic-training"
    )


def _is_elastic(cluster: Cluster) -> bool:

    return read_recipe(cluster.recipe_text, cluster.recipe_path).workload.elastic is not None
