"""Run one elastic job on a cluster that is up: train to the last step, and keep the cluster at its size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.core.cluster import Member
from dlcloud.core.plan import Plan
from dlcloud.core.recipe import Recipe
from dlcloud.elastic.controller import Controller
from dlcloud.elastic.lead import Coordinator
from dlcloud.elastic.program import program_of
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.workers import RecordsReceived, WorkerExited, Workers
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import RemoteJobs

PORT = 29510
"""Of the lighthouse; the ledger beside it has the next. Reachable for the cluster's own instances only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """One elastic job.

    Args:
        launcher: Of the cluster.
        recipe: With an elastic workload.
        recipe_folder: Its paths are relative to this.
        plan: As the cluster was launched.
        rehearsal: The incidents of the recipe; None without any.
    """

    launcher: Launcher
    recipe: Recipe
    recipe_folder: Path
    plan: Plan
    rehearsal: Rehearsal | None = None

    def run(self, members: Sequence[Member]) -> None:
        """Train to the last step.

        Raises:
            InstanceError: The coordinator is gone, and no other instance has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        launcher = self.launcher
        group_id = launcher.cloud.create_security_group(launcher.cluster_id, launcher.cluster.tags)
        launcher.cloud.allow_peers(group_id)
        Controller(
            cluster=launcher.cluster,
            recipe=self.recipe,
            make_workers=self._make_workers,
            grow=self._grow,
            end=launcher.shrink,
            target=self._target,
            clock=launcher.clock,
            emit=launcher.emit,
            rehearsal=self.rehearsal,
        ).run(members)

    def _target(self) -> int:
        """Return the requested number of workers: the last `dlcloud resize`'s, else the recipe's."""
        launcher = self.launcher
        return launcher.store.clusters.size(launcher.cluster_id) or self.recipe.instances.maximum

    def _make_workers(
        self, lead: Callable[[], Coordinator], post: Callable[[RecordsReceived | WorkerExited], None]
    ) -> Workers:
        launcher = self.launcher
        return Workers(
            recipe=self.recipe,
            program=program_of(self.recipe, self.recipe_folder, run=launcher.cluster_id),
            lead=lead,
            port=PORT,
            image_id=self.plan.image.image_id,
            detached=RemoteJobs(managed=launcher),
            runs=launcher.store.runs,
            quotes=PriceLookup(launcher.cloud),
            clock=launcher.clock,
            emit=launcher.emit,
            post=post,
        )

    def _grow(self, count: int, connected: Sequence[str]) -> LaunchedMembers:
        """Request more instances, through the same checks and the same failover as at the start."""
        members = self.launcher.reconcile()
        plan = self.launcher.plan(
            self.recipe, cidr=self.plan.cidr, size=len(members) + count, members=members
        )
        return self.launcher.grow(plan, connected=connected)
