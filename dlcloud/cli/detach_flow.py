"""The walk of `dlcloud up --detach`: bring the cluster up, hand it over, say how to watch it."""

from dataclasses import dataclass
from pathlib import Path

import click

from dlcloud.cli.context import Context
from dlcloud.cli.elsewhere import find
from dlcloud.cli.lifecycle import brought_up, handed_over, taken_down_on_failure
from dlcloud.cli.login import reached
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import InstanceError
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.resize import coordinator
from dlcloud.launch.handover import HandOver
from dlcloud.launch.lock import ClusterLock, RecipeFile, lock_existing
from dlcloud.report.table import Format, Report, Section, render


@dataclass(frozen=True, slots=True, kw_only=True)
class Detacher:
    """Leaves one cluster to its coordinator.

    Args:
        context: The collaborators.
        claim: On the cluster; we are in charge of it.
        file: Its recipe.
        cloud: Where it is.
        plan: What it is to be.
    """

    context: Context
    claim: ClusterLock
    file: RecipeFile
    cloud: Cloud
    plan: Plan

    def go(self) -> None:
        """Bring up what is missing and hand over, or finish a hand-over that was cut off.

        Raises:
            CloudError, InstanceError: It cannot be had; what was launched is taken down.
        """
        if not self._hand_over.finish():
            with taken_down_on_failure(self.context, self.claim):
                self._go()

    def refuse_detached(self) -> None:
        """Find out whether a hand-over that was cut off has put the coordinator in charge.

        Raises:
            RecipeError: It has.
        """
        if self._hand_over.finish():
            controller = self.context.clusters.controller(self.claim.cluster.cluster_id)
            raise handed_over(self.claim.cluster, controller or "")

    @property
    def _hand_over(self) -> HandOver:
        return _hand_over(self.context, self.claim.cluster, self.cloud)

    def _go(self) -> None:
        context, cluster = self.context, self.claim.cluster
        reached = brought_up(
            context,
            cluster,
            self.plan,
            cloud=self.cloud,
            dial=context.dialer(cluster),
            clock=context.clock,
            emit=context.emit,
        )
        to = coordinator(reached.members)
        if to is None:
            raise InstanceError(f"{cluster.name} has no on-demand instance to hand it over to")
        self._hand_over.go(
            to,
            self.file.recipe,
            Path(self.file.path).parent,
            cidr=self.plan.cidr,
            variables=context.handed_variables(cluster, rehearsal=bool(self.file.recipe.rehearsal)),
            copy_store=context.copy_store,
        )


def look_after(context: Context, cluster: Cluster, output: str) -> None:
    """Start the controller of a cluster that was handed over again, if it has died; print who is in charge.

    Raises:
        UnreachableError: The instance is gone, or does not answer.
        InstanceError: Its controller does not come up any more.
    """
    found = find(context, cluster.cluster_id)
    if found is not None:
        claim = lock_existing(cluster, paths=context.paths)
        try:
            with reached(context, found) as connection:
                cloud = context.cloud(cluster.cloud, cluster.region)
                _hand_over(context, cluster, cloud).revive(connection)
        finally:
            claim.lock.release()
    print_detached(context, cluster, output)


def _hand_over(context: Context, cluster: Cluster, cloud: Cloud) -> HandOver:
    return HandOver(
        cluster=cluster,
        cloud=cloud,
        dial=context.dialer(cluster),
        clusters=context.clusters,
        paths=context.paths,
        clock=context.clock,
        emit=context.emit,
    )


def print_detached(context: Context, cluster: Cluster, output: str) -> None:
    """Print who is in charge, and how to watch it from anywhere."""
    controller = context.clusters.controller(cluster.cluster_id) or ""
    name = cluster.name
    rows = [
        (f"dlcloud status {name}", "what is up, and what it has cost so far"),
        (f"dlcloud logs -f {name}", "what the training prints"),
        (f"dlcloud training {name}", "sizes, pauses, causes, cost"),
        (f"dlcloud resize {name} N", "more or fewer workers"),
        (f"dlcloud down {name}", "bring the results home, end everything"),
    ]
    section = Section(
        heading=f"{name} is controlled by its own instance {controller}; this machine may be off",
        titles=("from any machine with the account", ""),
        rows=rows,
        notes=["results that nobody fetches end with that instance, by the recipe's budget"],
    )
    record = {
        "cluster": name,
        "cluster_id": cluster.cluster_id,
        "controller": controller,
        "region": cluster.region,
    }
    click.echo(render(Report(command="up", records=[record], sections=[section], empty=""), Format(output)))
