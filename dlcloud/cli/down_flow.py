"""The walk of `dlcloud down`: in charge of each cluster, terminate, verify, tell what it cost."""

from collections.abc import Sequence

import click

from dlcloud.cli.context import Context
from dlcloud.cli.ending import end_cluster
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import DlcloudError, PartialError
from dlcloud.core.events import Warned
from dlcloud.launch.claim import claim_existing, sweep_folders
from dlcloud.report.table import Format, Report, Section, render


def take_down_all(context: Context, names: Sequence[str], *, everything: bool, output: str) -> None:
    """Take clusters down one after the other; one that fails does not stop the others.

    Raises:
        RecipeError: There is no such cluster.
        PartialError: Some could not be taken down.
    """
    clusters = (
        context.clusters.active() if everything else [context.find_cluster(name) for name in names or [""]]
    )
    done: list[Cluster] = []
    failed: list[DlcloudError] = []
    for cluster in clusters:
        try:
            _take_down(context, cluster)
            done.append(cluster)
        except DlcloudError as error:
            failed.append(error)
            context.emit(Warned(message=f"{cluster.name}: {error.message}"))
    sweep_folders(clusters=context.clusters, paths=context.paths, clock=context.clock)
    if failed and not done:
        raise failed[0]
    click.echo(render(_report(done), Format(output)))
    if failed:
        partial = PartialError(
            f"{len(failed)} of {len(clusters)} clusters are not down", "dlcloud down --all"
        )
        partial.result_shown = True
        raise partial


def _take_down(context: Context, cluster: Cluster) -> None:
    claim = claim_existing(cluster, paths=context.paths)
    try:
        end_cluster(context, cluster)
    finally:
        claim.lock.release()


def _report(clusters: Sequence[Cluster]) -> Report:
    section = Section(
        heading="", titles=("cluster", "state"), rows=[(each.name, "down") for each in clusters]
    )
    return Report(
        command="down",
        records=[{"cluster": each.name, "cluster_id": each.cluster_id, "state": "down"} for each in clusters],
        sections=[section] if clusters else [],
        empty="no cluster is up",
    )
