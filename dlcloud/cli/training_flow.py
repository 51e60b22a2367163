"""What `dlcloud training`, and an elastic `dlcloud up` at its end, print."""

from collections.abc import Mapping
from typing import Any

import click

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import RecipeError
from dlcloud.core.recipe import read_recipe
from dlcloud.core.result import Run
from dlcloud.core.timeline import timelines_of
from dlcloud.core.training import training_of
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import training_report


def print_training(context: Context, name: str, output: str, *, command: str = "training") -> None:
    """Print what the elastic run of a cluster came to.

    Args:
        context: The collaborators.
        name: The cluster's name or id; empty for the newest that trained.
        output: How it is written.
        command: Which command prints it.

    Raises:
        RecipeError: There is no such cluster, or it has not committed a step.
    """
    report = training_of_cluster(context, _find(context, name), command=command)
    click.echo(render(report, Format(output)))


def training_of_cluster(context: Context, cluster: Cluster, *, command: str) -> Report:
    """Return what the elastic run of a cluster came to.

    Raises:
        RecipeError: It has not committed a step.
    """
    runs = {run.run_id: run for run in context.runs.of_cluster(cluster.cluster_id)}
    timelines = timelines_of(_records(context, runs))
    if not timelines:
        raise RecipeError(f"{cluster.name} has committed no step yet", f"dlcloud logs {cluster.name}")
    prices = context.measurements.market_prices(runs)
    on_demand = {
        runs[run_id].instance_type: of_run.on_demand.hourly_usd
        for run_id, of_run in prices.items()
        if of_run.on_demand is not None
    }
    training = training_of(
        timelines[-1],
        context.clusters.members(cluster.cluster_id),
        on_demand=on_demand,
        disk_gib=cluster.disk_gib,
        now=context.clock.now(),
    )
    return training_report(
        training, cluster=cluster.name, rehearsal=cluster.cloud == "local", command=command
    )


def _find(context: Context, name: str) -> Cluster:
    clusters = [each for each in context.clusters.all() if not name or name in {each.name, each.cluster_id}]
    trained = [each for each in clusters if _trains(each)]
    if trained:
        return max(trained, key=lambda each: each.created_at)
    if clusters and name:
        raise RecipeError(f"{name} is no elastic training", "dlcloud cost-report tells what it measured")
    raise RecipeError(
        f"there is no cluster {name}" if name else "nothing has trained yet", "dlcloud up dynamic-training"
    )


def _trains(cluster: Cluster) -> bool:
    return read_recipe(cluster.recipe_text, cluster.recipe_path).workload.elastic is not None


def _records(context: Context, runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    store = context.measurements
    return [
        record
        for kind in ("step", "event")
        for records in store.records(runs, kind).values()
        for record in records
    ]
