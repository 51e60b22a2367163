"""`dlcloud training`: steps, world sizes, pauses and cost of an elastic training."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.analysis.result import parse_record
from dlcloud.analysis.training import (
    Course,
    Timeline,
    Training,
    build_timelines,
    course_of,
    summarize_training,
)
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import training_report
from dlcloud.store.clusters import RESIZE
from dlcloud.store.measurements import Measurements, Selection


def run(context: Context, *, name: str, output: str) -> int | None:
    """Show the elastic training of cluster NAME (default: the newest)."""
    status = context.forward_command(name)
    if status is None:
        print_training(context, name, output)
    return status


def print_training(context: Context, name: str, output: str, *, command: str = "training") -> None:
    """Print the elastic training of a cluster in a format; see `newest_training`."""
    say(render(newest_training(context, name, command=command), Format(output)))


def newest_training(context: Context, name: str, *, command: str) -> Report:
    """Return the elastic training of a cluster.

    Args:
        context: The collaborators.
        name: The cluster's name or id; empty for the newest that trained.
        command: The command that shows it.

    Raises:
        RecipeError: There is no such cluster, or it has not committed a step.
    """
    return training_of_cluster(context, _find(context, name), command=command)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTraining:
    """The newest training of a cluster, with its timeline and its course."""

    cluster: Cluster
    training: Training
    timeline: Timeline
    course: Course

    @property
    def rehearsal(self) -> bool:
        """True if it ran on the local EC2."""
        return self.cluster.cloud == "local"


def trainings_of_home(context: Context, selection: Selection, most: int) -> tuple[list[StoredTraining], int]:
    """Return the newest selected trainings that committed a step, and how many older ones there are.

    A training has no cases and no settings: a selection of these selects none.
    """
    if selection.cases or selection.settings:
        return [], 0
    clusters = [cluster for cluster in context.clusters.all() if _is_selected(context, cluster, selection)]
    clusters = sorted(filter(_is_elastic, clusters), key=lambda cluster: cluster.created_at, reverse=True)
    stored = [load_training(context, cluster) for cluster in clusters[:most]]
    return [training for training in stored if training is not None], max(0, len(clusters) - most)


def _is_selected(context: Context, cluster: Cluster, selection: Selection) -> bool:
    """True if a report's selection has this cluster: by its name or a run's, recipe, types, cloud and day."""
    if selection.since is not None and cluster.created_at < selection.since:
        return False
    if selection.until is not None and cluster.created_at >= selection.until:
        return False
    filters: tuple[tuple[Sequence[str], Callable[[], set[str]]], ...] = (
        (selection.clouds, lambda: {cluster.cloud}),
        (selection.clusters, lambda: {cluster.name, cluster.cluster_id}),
        (selection.names, lambda: {cluster.name, cluster.cluster_id, *_run_ids(context, cluster)}),
        (selection.run_ids, lambda: {*_run_ids(context, cluster)}),
        (selection.benchmarks, lambda: {read_recipe(cluster.recipe_text, cluster.recipe_path).name}),
        (selection.types, lambda: _types(context, cluster)),
    )
    return all(values() & {*names} for names, values in filters if names)


def _run_ids(context: Context, cluster: Cluster) -> list[str]:
    return [run.run_id for run in context.runs.of_cluster(cluster.cluster_id)]


def _types(context: Context, cluster: Cluster) -> set[str]:
    """Return the types of a cluster's instances, and their families."""
    types = {member.instance.instance_type for member in context.clusters.members(cluster.cluster_id)}
    return types | {name.partition(".")[0] for name in types}


def summary_of_cluster(context: Context, cluster: Cluster) -> Training | None:
    """Return the summary of the newest training of a cluster; None if it has not committed a step."""
    stored = load_training(context, cluster)
    return None if stored is None else stored.training


def load_training(context: Context, cluster: Cluster) -> StoredTraining | None:
    """Return the newest training of a cluster; None if it has not committed a step."""
    runs = {run.run_id: run for run in context.runs.of_cluster(cluster.cluster_id)}
    timelines = timelines_of_runs(context.measurements, runs)
    if not timelines:
        return None
    on_demand = {
        runs[run_id].instance_type: prices.on_demand.hourly_usd
        for run_id, prices in context.measurements.market_prices(runs).items()
        if prices.on_demand is not None
    }
    members, now = context.clusters.members(cluster.cluster_id), context.clock.now()
    training = summarize_training(
        timelines[-1],
        members,
        on_demand=on_demand,
        disk_gib=cluster.disk_gib,
        now=now,
        requested=_most_requested(context, cluster),
    )
    course = course_of(timelines[-1], members, baseline=training.baseline, disk_gib=cluster.disk_gib, now=now)
    return StoredTraining(cluster=cluster, training=training, timeline=timelines[-1], course=course)


def _most_requested(context: Context, cluster: Cluster) -> int:
    """Return the most workers that the recipe or a resize asked for."""
    recipe = read_recipe(cluster.recipe_text, cluster.recipe_path)
    resizes = context.clusters.intents(cluster.cluster_id, RESIZE)
    return max([recipe.instances.maximum, *(int(intent.detail) for intent in resizes)])


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


def load_timelines(store: Measurements, run_ids: Collection[str]) -> list[Timeline]:
    """Return the timelines of runs, a cluster's together, under the cluster's name."""
    names = {run.run_id: run.cluster_name for run in store.runs(run_ids)}
    by_cluster: dict[str, list[str]] = {}
    for run_id in run_ids:
        if run_id in names:
            by_cluster.setdefault(names[run_id], []).append(run_id)
    named = []
    for name, of_cluster in by_cluster.items():
        timelines = timelines_of_runs(store, of_cluster)
        several = len(timelines) > 1  # the workers know their run by another name
        named += [
            replace(timeline, run=f"{name} {timeline.run}" if several else name) for timeline in timelines
        ]
    return named


def timelines_of_runs(store: Measurements, run_ids: Collection[str]) -> list[Timeline]:
    """Return the timelines of the runs of one cluster.

    What was recorded before the first of them is another cluster's: a checkpoint has the record of its last
    step.
    """
    since = min((run.started_at for run in store.runs(run_ids)), default=None)
    records = (
        record
        for kind in ("step", "event")
        for of_run in store.records(run_ids, kind).values()
        for record in of_run
    )
    return build_timelines(records, since=since)


def read_timelines(file: str) -> list[Timeline]:
    """Return the timelines of a trainer's records.

    Raises:
        RecipeError: The file cannot be read, or has no step of a training.
    """
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            records = [record for line in stream if (record := parse_record(line)) is not None]
    except OSError as error:
        raise RecipeError(f"{file}: {error.strerror}", "name a trainer's records") from error
    timelines = build_timelines(records)
    if not timelines:
        raise RecipeError(f"{file}: no step of a training is in it", "name a trainer's records")
    return timelines
