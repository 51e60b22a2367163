"""`dlcloud down`: terminate clusters and all that belongs to them."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import not_

from dlcloud.app.clusters.batch import take_late
from dlcloud.app.clusters.experiment import report_fetched
from dlcloud.app.context import Context
from dlcloud.app.results.stored_results import StoredResults, fetch_lost
from dlcloud.app.results.training import training_of_cluster
from dlcloud.app.terminal.screen import Show, confirm
from dlcloud.app.terminal.signals import TerminationAbandonedError
from dlcloud.app.termination import (
    describe_remainder,
    destroy_cluster,
    download_unfinished,
    files_left,
    removing_leftovers,
)
from dlcloud.detached.locate import DetachedCluster
from dlcloud.launch.acquire import ClusterLock, lock_cluster, remove_stale_folders
from dlcloud.launch.down import gc
from dlcloud.launch.launcher import Launcher
from dlcloud.model.clock import Clock, wait_until
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import (
    DlcloudError,
    InstanceError,
    PartialError,
    RecipeError,
    RemoteCommandError,
    StoreError,
    WrongAccountError,
)
from dlcloud.model.events import Info, Warned
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.table import Report, Section
from dlcloud.store.clusters import FETCH
from dlcloud.store.home import Paths
from dlcloud.system.files import FileLock

ANSWER_S = 60.0
"""The time that a process has which was asked to end its cluster; it takes a few seconds."""
GONE_S = 5.0
"""The kernel releases the lock of a killed process within this."""
POLL_S = 0.1
MIB = 1 << 20
MOST_SHOWN = 3
"""Files that are named which would be lost."""


def run(
    context: Context,
    *,
    clusters: Sequence[str] = (),
    all_clusters: bool = False,
    discard: bool = False,
    all_owners: bool = False,
    yes: bool = False,
    show: Show,
) -> None:
    """Terminate clusters (the only one, if none is named) with their security groups and keys.

    Args:
        context: The collaborators.
        clusters: Names or ids.
        all_clusters: Every cluster that is up.
        discard: Terminate also a detached cluster that does not answer; its results are lost.
        all_owners: Detached clusters of other people may be named.
        yes: Do not ask.
        show: Takes the result.
    """
    down = Down(context=context, discard=discard, all_owners=all_owners, yes=yes, show=show)
    down.run(clusters, all_clusters=all_clusters)


@dataclass(frozen=True, kw_only=True)
class Down:
    """One `dlcloud down`, with the options of the command."""

    context: Context
    discard: bool
    all_owners: bool
    yes: bool
    show: Show

    def run(self, names: Sequence[str], *, all_clusters: bool) -> None:
        """Terminate clusters one after the other; one that fails does not stop the others.

        Raises:
            RecipeError: There is no such cluster.
            PartialError: Some could not be terminated.
        """
        context = self.context
        targets: list[Cluster | DetachedCluster] = (
            [*context.clusters.active()] if all_clusters else [self._find(name) for name in names or [""]]
        )
        done: list[Cluster | DetachedCluster] = []
        trainings: list[Report] = []
        failed: list[DlcloudError] = []
        for target in targets:
            try:
                trainings += self._terminate(target)
                done.append(target)
            except KeyboardInterrupt as error:
                first = targets.index(target) + isinstance(
                    error, TerminationAbandonedError
                )  # that was emitted
                self._warn_of(targets[first:])
                raise
            except DlcloudError as error:
                failed.append(error)
                if len(targets) > 1:  # the error of a single one is the command's
                    context.emit(Warned(message=f"{target.name}: {error.message}"))
        remove_stale_folders(store=context.store, clock=context.clock)
        if failed and not done:
            raise failed[0]
        self.show(_report(done, trainings))
        if failed:
            message = f"{len(failed)} of {len(targets)} clusters are not down"
            raise PartialError(message, "dlcloud down --all", result_shown=True)

    def _warn_of(self, targets: Sequence[Cluster | DetachedCluster]) -> None:
        """Emit what an interrupt has left up."""
        context = self.context
        for target in targets:
            stored = context.clusters.find(target.cluster_id)
            if stored is None:
                message = f"{target.name} is still up: dlcloud down {target.name} terminates it"
                context.emit(Warned(message=message))
            elif stored.state is not ClusterState.DOWN:
                with suppress(WrongAccountError):  # then nothing of it was touched
                    context.emit(Warned(message=describe_remainder(context.machines.launcher(stored))))

    def _find(self, name: str) -> Cluster | DetachedCluster:
        """Return a cluster of this home, or a detached one of another; a whole name before a beginning."""
        own = {
            word for cluster in self.context.clusters.active() for word in (cluster.name, cluster.cluster_id)
        }
        everyone = replace(self.context.detached, all_owners=self.all_owners)
        detached = everyone.find(name) if name and name not in own else None
        if detached is None:
            return self.context.find_cluster(name)
        if self.all_owners:
            message = f"{detached.name} is of {everyone.describe_owner(detached)}"
            self.context.emit(Info(message=message))
        return detached

    def _terminate(self, target: Cluster | DetachedCluster) -> list[Report]:
        """Terminate one cluster; return the report of the training whose results were fetched for that."""
        context = self.context
        if isinstance(target, DetachedCluster):
            fetched = self._fetch(target)
            if fetched is None:
                self._remove_leftovers(target)
                return []
            target = fetched
        # Before the process in charge is asked to end: it would terminate the cluster with its own login.
        context.accounts.verify(target, discard=self.discard)
        with take_charge(context, target, yes=self.yes):
            stored = context.clusters.find(target.cluster_id)
            if stored is not None and stored.state is ClusterState.DOWN:
                return []  # the process that was in charge has terminated it
            is_handed_over = context.clusters.last_hand_over(target.cluster_id) is not None
            late = False
            if is_handed_over and not self._is_fetched(target):
                late = self._fetch_handed_over(target)
            launcher = context.machines.launcher(target)
            if not is_handed_over:
                self._confirm_loss(launcher)
            elif context.paths.key(target.cluster_id).exists():
                download_unfinished(launcher, of_controller=True)
            destroy_cluster(launcher, discard=self.discard)
            late = take_late(context, launcher) or late
        return self._training(target, is_fetched=late)

    def _fetch_handed_over(self, cluster: Cluster) -> bool:
        """Fetch the results from the instance to which this home handed the cluster over.

        Where it is gone, from the bucket of its results; True if that had any.
        """
        controller = self.context.clusters.controller_instance_id(cluster.cluster_id)
        detached = self.context.detached.find_of(cluster)
        if detached is not None:
            self._fetch(detached, is_certain=controller is not None)
        elif controller is not None and self._fetch_from_bucket(cluster):
            return True
        elif controller is not None:
            message = (
                f"{controller}, which controlled {cluster.name}, is gone: another machine has downloaded"
            )
            self.context.emit(Warned(message=f"{message} its results, or they are lost with it"))
        return False

    def _fetch_from_bucket(self, cluster: Cluster) -> bool:
        """Import what the bucket of a cluster's results has; True if there was anything."""
        launcher = self.context.machines.launcher(cluster)
        recipe = read_recipe(cluster.recipe_text, cluster.recipe_path)
        return fetch_lost(StoredResults(context=self.context, launcher=launcher, recipe=recipe))

    def _fetch(self, detached: DetachedCluster, *, is_certain: bool = True) -> Cluster | None:
        """Return the cluster with all that its instance knew; None where that was given up.

        Args:
            detached: The cluster.
            is_certain: The instance was in charge; if that is not certain, there may be nothing to fetch.
        """
        self._confirm_end(detached)
        try:
            return self.context.detached.fetch(detached, unfinished=self.discard)
        except DlcloudError as error:
            # An instance that answers and has no store was never in charge.
            if not is_certain and isinstance(error, RemoteCommandError):
                return None
            if not self.discard:
                discard = f"dlcloud down {detached.name} --discard terminates everything; "
                discard += "the results on it are lost"
                error.hint = f"{error.hint}; {discard}" if type(error) is InstanceError else discard
                raise
            message = f"the results of {detached.name} that were not at home yet are lost: {error.message}"
            self.context.emit(Warned(message=message))
            return None

    def _confirm_end(self, detached: DetachedCluster) -> None:
        """Ask on a terminal before a training that still runs is ended."""
        if self.yes or not sys.stdin.isatty() or not self.context.detached.is_training(detached):
            return
        question = f"{detached.name} still trains; download its results so far, and terminate it?"
        with self.context.console.suspended():
            confirm(question)

    def _confirm_loss(self, launcher: Launcher) -> None:
        """Ask on a terminal before files are lost that no run has downloaded; else state what is lost."""
        left = {} if self.discard else files_left(launcher)
        if not left:
            return
        shown = ", ".join(sorted(left, key=lambda name: -left[name])[:MOST_SHOWN])
        mib = sum(left.values()) / MIB
        text = (
            f"{len(left)} file(s) of {launcher.cluster.name} were never downloaded ({mib:,.1f} MiB): {shown}"
        )
        if self.yes or not sys.stdin.isatty():
            self.context.emit(Warned(message=f"{text}; they are lost with it"))
            return
        with self.context.console.suspended():
            confirm(f"{text}; terminate it all the same?")

    def _remove_leftovers(self, detached: DetachedCluster) -> None:
        """Remove by tag what belongs to a cluster that this home does not know."""
        context = self.context
        cloud = context.clouds.cloud(detached.cloud, detached.region, detached.profile)
        leftovers = [item for item in cloud.leftovers.find() if item.cluster_id == detached.cluster_id]
        command, price = f"dlcloud down {detached.name}", "at an unknown price"
        with removing_leftovers(leftovers, context.emit, price=price, command=command):
            gc(leftovers, cloud=cloud, clock=context.clock, emit=context.emit)

    def _is_fetched(self, cluster: Cluster) -> bool:

        return bool(self.context.clusters.intents(cluster.cluster_id, FETCH))

    def _training(self, cluster: Cluster, *, is_fetched: bool) -> list[Report]:

        context = self.context
        if not is_fetched and not self._is_fetched(cluster):
            return []
        try:
            if not read_recipe(cluster.recipe_text, cluster.recipe_path).workload.elastic:
                report = report_fetched(context, cluster, command="down")
                return [report] if report is not None else []
            return [training_of_cluster(context, cluster, command="down")]
        except RecipeError as error:
            context.emit(Warned(message=error.message))
            return []


def _report(done: Sequence[Cluster | DetachedCluster], trainings: Sequence[Report]) -> Report:
    rows = [(cluster.name, "down") for cluster in done]
    section = Section(heading="", titles=("cluster", "state"), rows=rows)
    records = [{"records": [*report.records], **report.extra} for report in trainings]
    return Report(
        command="down",
        records=[
            {"cluster": cluster.name, "cluster_id": cluster.cluster_id, "state": "down"} for cluster in done
        ],
        sections=[*(part for report in trainings for part in report.sections), section] if done else [],
        empty="no cluster is up",
        extra={"trainings": records} if records else {},
    )


def take_charge(context: Context, cluster: Cluster, *, yes: bool) -> ClusterLock:
    """Lock a cluster; a process in charge of it is sent SIGTERM, on which it ends the cluster itself.

    One that has not ended after ANSWER_S is killed: what it began, this command finishes.

    Args:
        context: The collaborators.
        cluster: The cluster.
        yes: Also end a process that is in charge of other clusters, too.

    Raises:
        StoreError: The process is another user's or another machine's, or is in charge of other clusters.
    """
    try:
        return lock_cluster(cluster, paths=context.paths)
    except StoreError as error:
        lock = FileLock(context.paths.cluster_lock(cluster.cluster_id))
        holder = lock.holder_id()
        if holder is None or holder == os.getpid():
            raise
        if not yes:
            _refuse_others(context, cluster, holder, error)
    context.emit(Info(message=f"process {holder} is in charge of {cluster.name}: asking it to end"))
    if not _end(holder, signal.SIGTERM, lock, context.clock, ANSWER_S):
        message = f"process {holder} has not ended within {ANSWER_S:.0f} s: it is killed"
        context.emit(Warned(message=f"{message}, and {cluster.name} is ended from here"))
        _end(holder, signal.SIGKILL, lock, context.clock, GONE_S)
    return lock_cluster(cluster, paths=context.paths)


def _refuse_others(context: Context, cluster: Cluster, holder: int, error: StoreError) -> None:
    """Refuse to end a process that is in charge of other clusters, as a bench of several types is."""
    others = [
        other.name
        for other in context.clusters.active()
        if other.cluster_id != cluster.cluster_id and _is_held(other, holder, context.paths)
    ]
    if others:
        message = f"process {holder} is in charge of {cluster.name}, and of {', '.join(others)}"
        raise StoreError(message, f"dlcloud down {cluster.name} --yes terminates them all") from error


def _is_held(cluster: Cluster, holder: int, paths: Paths) -> bool:
    return FileLock(paths.cluster_lock(cluster.cluster_id)).holder_id() == holder


def _end(holder: int, number: signal.Signals, lock: FileLock, clock: Clock, seconds: float) -> bool:
    """Send a signal to a process; True once it holds the lock no more, False if it does after `seconds`."""
    with suppress(ProcessLookupError):
        os.kill(holder, number)
    return not wait_until(lock.is_held, not_, clock=clock, timeout_s=seconds, poll_s=POLL_S)
