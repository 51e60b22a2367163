"""The walk of an elastic `dlcloud up` once its instances are up: train, and keep the cluster at its size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.plan import Plan, make_plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.recipe import Recipe
from dlcloud.core.remote import Dial
from dlcloud.elastic.controller import Controller
from dlcloud.elastic.lead import Coordinator
from dlcloud.elastic.program import Program, program_of
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.workers import RecordsReceived, WorkerExited, Workers
from dlcloud.launch.grow import GrowResult, grow
from dlcloud.launch.lock import first_boot
from dlcloud.launch.members import existing_capacity, reconcile_members
from dlcloud.launch.preflight import observe
from dlcloud.launch.quotes import PriceLookup
from dlcloud.launch.remote_jobs import RemoteJobs
from dlcloud.launch.shrink import shrink

PORT = 29510
"""Of the lighthouse; the ledger beside it has the next. Reachable for the cluster's own instances only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One elastic job on a cluster that is up.

    Args:
        context: The collaborators.
        cluster: Whose instances; we are in charge of it.
        recipe: With an elastic workload.
        recipe_folder: Its paths are relative to this.
        plan: As it was brought up.
        cloud: Where.
        dial: Reaches the instances.
    """

    context: Context
    cluster: Cluster
    recipe: Recipe
    recipe_folder: Path
    plan: Plan
    cloud: Cloud
    dial: Dial

    def go(self, members: Sequence[Member]) -> None:
        """Train to the last step.

        Raises:
            InstanceError: The coordinator is gone, and nobody else has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        context = self.context
        self.cloud.allow_peers(self.cloud.create_security_group(self.cluster.cluster_id, self.cluster.tags))
        Controller(
            cluster=self.cluster,
            recipe=self.recipe,
            make_workers=self._workers,
            grow=self._grow,
            end=self._end,
            target=self._target,
            clock=context.clock,
            emit=context.emit,
            rehearsal=self._rehearsal(),
        ).run(members)

    def _target(self) -> int:
        """Return how many workers are wanted: as `dlcloud resize` said last, else as the recipe says."""
        return self.context.clusters.size(self.cluster.cluster_id) or self.recipe.instances.maximum

    def _workers(
        self, lead: Callable[[], Coordinator], post: Callable[[RecordsReceived | WorkerExited], None]
    ) -> Workers:
        context = self.context
        return Workers(
            recipe=self.recipe,
            program=self._program(),
            lead=lead,
            port=PORT,
            image_id=self.plan.image.image_id,
            detached=RemoteJobs(
                cluster=self.cluster,
                cloud=self.cloud,
                dial=self.dial,
                runs=context.runs,
                paths=context.paths,
                clock=context.clock,
                emit=context.emit,
            ),
            runs=context.runs,
            quotes=PriceLookup(self.cloud),
            clock=context.clock,
            emit=context.emit,
            post=post,
        )

    def _program(self) -> Program:
        return program_of(self.recipe, self.recipe_folder, run=self.cluster.cluster_id)

    def _grow(self, count: int, known: Sequence[str]) -> GrowResult:
        """Ask for more instances, through the same checks and the same failover as at the start."""
        context, cluster = self.context, self.cluster
        members = reconcile_members(cluster, cloud=self.cloud, clusters=context.clusters, clock=context.clock)
        recipe = self.recipe.resized(len(members) + count)
        account = context.account(cluster.cloud, cluster.region)
        observed = observe(recipe, cloud=self.cloud, account=account, cidr=self.plan.cidr)
        there = existing_capacity(cluster, recipe, members, prices=observed.prices, clusters=context.clusters)
        return grow(
            cluster,
            make_plan(recipe, observed, there),
            first_boot=lambda minutes: first_boot(
                cluster, life_minutes=minutes, idle_minutes=self.plan.idle_minutes, paths=context.paths
            ),
            cloud=self.cloud,
            clusters=context.clusters,
            dial=self.dial,
            clock=context.clock,
            emit=context.emit,
            reached=known,
        )

    def _end(self, members: Sequence[Member]) -> None:
        context = self.context
        shrink(
            self.cluster,
            members,
            cloud=self.cloud,
            clusters=context.clusters,
            clock=context.clock,
            emit=context.emit,
        )

    def _rehearsal(self) -> Rehearsal | None:
        if not self.recipe.rehearsal:
            return None
        return Rehearsal(
            incidents=self.recipe.rehearsal,
            types=self.recipe.instances.types,
            fate=self.context.local_endpoint().control,
            emit=self.context.emit,
        )
