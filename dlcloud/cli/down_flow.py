"""The walk of `dlcloud down`: in charge of each cluster, terminate, verify, tell what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from dlcloud.cli.context import Context
from dlcloud.cli.elsewhere import find, of_cluster
from dlcloud.cli.ending import end_cluster
from dlcloud.cli.training import training_of_cluster
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import DlcloudError, PartialError, RecipeError, RemoteCommandError
from dlcloud.core.events import Warned
from dlcloud.core.whereabouts import DetachedCluster
from dlcloud.launch.lock import lock_existing, sweep_folders
from dlcloud.launch.sweep import gc
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.store.clusters import FETCH


@dataclass(frozen=True, kw_only=True)
class Downer:
    """One `dlcloud down`.

    Args:
        context: The collaborators.
        discard: Whether a cluster is taken down although its instance, which controls it, cannot be reached.
        output: How the result is written.
    """

    context: Context
    discard: bool
    output: str

    def go(self, names: Sequence[str], *, everything: bool) -> None:
        """Take clusters down one after the other; one that fails does not stop the others.

        Raises:
            RecipeError: There is no such cluster.
            PartialError: Some could not be taken down.
        """
        context = self.context
        targets: list[Cluster | DetachedCluster] = (
            [*context.clusters.active()] if everything else [self._named(name) for name in names or [""]]
        )
        done: list[Cluster | DetachedCluster] = []
        trainings: list[Report] = []
        failed: list[DlcloudError] = []
        for target in targets:
            try:
                trainings += self._take_down(target)
                done.append(target)
            except DlcloudError as error:
                failed.append(error)
                context.emit(Warned(message=f"{target.name}: {error.message}"))
        sweep_folders(clusters=context.clusters, paths=context.paths, clock=context.clock)
        if failed and not done:
            raise failed[0]
        click.echo(render(_report(done, trainings), Format(self.output)))
        if failed:
            partial = PartialError(
                f"{len(failed)} of {len(targets)} clusters are not down", "dlcloud down --all"
            )
            partial.result_shown = True
            raise partial

    def _named(self, name: str) -> Cluster | DetachedCluster:
        """Return a cluster of this home, or one of another that its own instance controls."""
        try:
            return self.context.find_cluster(name)
        except RecipeError:
            found = find(self.context, name) if name else None
            if found is None:
                raise
            return found

    def _take_down(self, target: Cluster | DetachedCluster) -> list[Report]:
        """Take one down; returns what the training came to whose results were brought home for that."""
        context = self.context
        if isinstance(target, DetachedCluster):
            brought = self._fetched(target)
            if brought is None:
                self._sweep(target)
                return []
            target = brought
        claim = lock_existing(target, paths=context.paths)
        try:
            detached = context.clusters.hand_over(target.cluster_id) is not None
            if detached and not context.clusters.intents(target.cluster_id, FETCH):
                self._fetch_handed_over(target)
            end_cluster(context, target)
        finally:
            claim.lock.release()
        return self._training(target)

    def _fetch_handed_over(self, cluster: Cluster) -> None:
        """Bring home what the instance knows to which this home handed the cluster over."""
        context = self.context
        controller = context.clusters.controller(cluster.cluster_id)
        found = of_cluster(context, cluster)
        if found is not None:
            self._fetched(found, sure=controller is not None)
        elif controller is not None:
            told = f"{controller}, which controlled {cluster.name}, is gone: another machine has brought its"
            context.emit(Warned(message=f"{told} results home, or they are lost with it"))

    def _fetched(self, found: DetachedCluster, *, sure: bool = True) -> Cluster | None:
        """Return the cluster with all that its instance knew; None where that was given up.

        Args:
            found: Where it is.
            sure: Whether the instance was ever in charge; if not, there may be nothing to bring.
        """
        from dlcloud.cli.fetch_flow import fetch  # it brings paramiko

        try:
            return fetch(self.context, found)
        except DlcloudError as error:
            # Who was reached and has no store was never in charge.
            if sure or not isinstance(error, RemoteCommandError):
                self._lose(found.name, error)
            return None

    def _lose(self, name: str, error: DlcloudError) -> None:
        if not self.discard:
            error.hint = f"dlcloud down {name} --discard ends everything; the results on it are lost"
            raise error
        message = f"the results of {name} that were not at home yet are lost: {error.message}"
        self.context.emit(Warned(message=message))

    def _sweep(self, found: DetachedCluster) -> None:
        """End by tag what belongs to a cluster of which nothing is known here."""
        context, cloud = self.context, self.context.cloud(found.cloud, found.region)
        leftovers = [each for each in cloud.leftovers() if each.cluster_id == found.cluster_id]
        gc(leftovers, cloud=cloud, clock=context.clock, emit=context.emit)

    def _training(self, cluster: Cluster) -> list[Report]:
        context = self.context
        if not context.clusters.intents(cluster.cluster_id, FETCH):
            return []
        try:
            return [training_of_cluster(context, cluster, command="down")]
        except RecipeError as error:
            context.emit(Warned(message=error.message))
            return []


def _report(done: Sequence[Cluster | DetachedCluster], trainings: Sequence[Report]) -> Report:
    section = Section(heading="", titles=("cluster", "state"), rows=[(each.name, "down") for each in done])
    told = [{"records": [*each.records], **each.extra} for each in trainings]
    return Report(
        command="down",
        records=[{"cluster": each.name, "cluster_id": each.cluster_id, "state": "down"} for each in done],
        sections=[*(each for report in trainings for each in report.sections), section] if done else [],
        empty="no cluster is up",
        extra={"trainings": told} if told else {},
    )
