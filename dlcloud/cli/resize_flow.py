"""The walk of `dlcloud resize`: look, decide, plan, ask, then grow or shrink, and undo on failure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click

from dlcloud.bench.program import program_of
from dlcloud.cli.context import Context
from dlcloud.cli.up_flow import ask_to_spend, network_of
from dlcloud.core.cluster import Cluster, ClusterState, Member
from dlcloud.core.errors import DlcloudError, PartialError, RecipeError
from dlcloud.core.events import Warned, stage
from dlcloud.core.plan import Plan, make_plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.recipe import Recipe, read_recipe
from dlcloud.core.resize import Resize, decide, refuse_size
from dlcloud.elastic.program import program_of as training_of
from dlcloud.launch.grow import GrowResult, grow
from dlcloud.launch.lock import first_boot, lock_existing
from dlcloud.launch.members import existing_capacity, list_members, reconcile_members, wait_for_consistency
from dlcloud.launch.preflight import observe
from dlcloud.launch.provision import Provisioned, no_capacity
from dlcloud.launch.setup import prepare_all
from dlcloud.launch.shrink import shrink
from dlcloud.report.resize import resize_report
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.store.clusters import RESIZE


@dataclass
class Resizer:
    """One `dlcloud resize`.

    Args:
        context: The collaborators.
        name: The cluster's name or id.
        size: How many instances it is to have.
        cidr: The network that may reach new instances; empty for the caller's own.
        output: How the result is written.
    """

    context: Context
    name: str
    size: int
    cidr: str
    output: str

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.context.find_cluster(self.name)

    @cached_property
    def recipe(self) -> Recipe:
        """The cluster's recipe, for the size that it is to have."""
        kept = read_recipe(self.cluster.recipe_text, self.cluster.recipe_path)
        refuse_size(kept, self.size)
        return kept.resized(self.size)

    @cached_property
    def requirements(self) -> str:
        """What the cluster's program needs; new instances are set up for it."""
        folder = Path(self.cluster.recipe_path).parent
        if self.recipe.workload.elastic is not None:
            return training_of(self.recipe, folder, run="").requirements
        return program_of(self.recipe, folder).requirements

    @cached_property
    def cloud(self) -> Cloud:
        """Where the cluster is."""
        return self.context.cloud(self.cluster.cloud, self.cluster.region)

    def show(self) -> None:
        """Print what would be done, as the result."""
        if not self._trains:
            self._refuse_ended()
            _refuse_state(self.cluster)
        members = self._look()
        decision = self._decide(members)
        self._print(decision, self._plan(members) if decision.launch else None)

    def go(self, *, yes: bool) -> None:
        """Do it; print what was done.

        Raises:
            CapacityError, QuotaError: Not one of the missing instances could be had.
            PartialError: Some could not be had, reached or set up.
        """
        if self._trains:
            self._tell_controller()
            return
        self._refuse_ended()
        _refuse_state(self.cluster)
        _ = self.recipe, self.requirements  # their faults come before anything is touched
        claim = lock_existing(self.cluster, paths=self.context.paths)
        try:
            _refuse_state(self.context.clusters.find(self.cluster.cluster_id) or self.cluster)
            members = self._look()
            decision = self._decide(members)
            plan = self._plan(members) if decision.launch else None
            if plan is not None:
                click.echo(render(resize_report(decision, plan), Format.TABLE) + "\n", err=True)
                ask_to_spend(plan, yes=yes)
            intent_id = self._remember(self.size)
            done = self._grow(plan, members) if plan is not None else self._shrink()
            self.context.clusters.end_intent(intent_id, f"{done} instances", self.context.clock.now())
        finally:
            claim.lock.release()

    @property
    def _trains(self) -> bool:
        """Tell whether an elastic job runs, whose controller does the resizing, at a step of the training."""
        elastic = self.recipe.workload.elastic is not None
        return elastic and self.cluster.state is ClusterState.RUNNING

    def _refuse_ended(self) -> None:
        """Refuse the cluster that this very instance controls: nothing is left to do on it."""
        if self.context.controller:
            raise RecipeError(
                f"the training of {self.cluster.name} has ended",
                f"dlcloud down {self.cluster.name} brings its results home",
            )

    def _tell_controller(self) -> None:
        """Store the size; the `up` that trains looks at it, and so does the next one after a crash."""
        intent_id = self._remember(self.size)
        told = f"{self.cluster.name} is told to train with {self.size} worker(s)"
        self.context.clusters.end_intent(intent_id, told, self.context.clock.now())
        section = Section(heading="", titles=("done",), rows=[(told,)])
        report = Report(command="resize", records=[{"done": told}], sections=[section], empty="")
        click.echo(told if self.output == Format.TABLE else render(report, Format(self.output)))

    def _grow(self, plan: Plan, before: Sequence[Member]) -> int:
        context = self.context
        with self._undone_on_failure(before):
            grown = grow(
                self.cluster,
                plan,
                first_boot=lambda minutes: first_boot(
                    self.cluster, life_minutes=minutes, idle_minutes=plan.idle_minutes, paths=context.paths
                ),
                cloud=self.cloud,
                clusters=context.clusters,
                dial=context.dialer(self.cluster),
                clock=context.clock,
                emit=context.emit,
            )
            unfit = self._set_up(grown)
        old = {member.instance.instance_id for member in before}
        self._end([each for each in grown.members if each.instance.instance_id in unfit.keys() - old])
        usable = [each for each in grown.members if each.instance.instance_id not in unfit]
        surplus = self._decide(usable).end  # a launch that was cut off may have given more than is wanted now
        self._end(surplus)
        self._print(self._decide(before), plan, done=[each for each in usable if each not in surplus])
        self._raise_for(grown, usable, before, unfit)
        return len(usable) - len(surplus)

    def _set_up(self, grown: GrowResult) -> dict[str, DlcloudError]:
        return prepare_all(
            grown.connections,
            self.recipe.setup,
            self.requirements,
            clock=self.context.clock,
            emit=self.context.emit,
        )

    def _shrink(self) -> int:
        context = self.context
        wait_for_consistency(self.cluster, clusters=context.clusters, clock=context.clock)
        members = reconcile_members(
            self.cluster, cloud=self.cloud, clusters=context.clusters, clock=context.clock
        )
        decision = self._decide(members)
        self._end(decision.end)
        left = [member for member in members if member not in decision.end]
        self._print(decision, None, done=left)
        if len(left) < self.size:
            raise PartialError(
                f"{self.cluster.name} has {len(left)} instance(s): others have ended meanwhile",
                f"dlcloud resize {self.cluster.name} {self.size}",
            )
        return len(left)

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

    def _look(self) -> list[Member]:
        return list_members(self.cluster, cloud=self.cloud, clusters=self.context.clusters)

    def _decide(self, members: Sequence[Member]) -> Resize:
        instances = self.recipe.instances
        decision = decide(members, self.size, base=instances.on_demand_base, rounds=instances.rounds)
        if not self._trains:
            return decision
        reason = f"the training goes on with {instances.minimum} or more workers"
        return replace(decision, reasons=(*decision.reasons, reason))

    def _plan(self, members: Sequence[Member]) -> Plan:
        context, network = self.context, network_of(self.cidr)
        with stage(context.emit, context.clock, "looking at credentials, types, image, prices, network"):
            account = context.account(self.cluster.cloud, self.cluster.region)
            observed = observe(self.recipe, cloud=self.cloud, account=account, cidr=network)
        there = existing_capacity(
            self.cluster, self.recipe, members, prices=observed.prices, clusters=context.clusters
        )
        return make_plan(self.recipe, observed, there)

    def _remember(self, size: int) -> int:
        """Store the size before anything is done: whoever goes on after a crash goes on to that size."""
        return self.context.clusters.begin_intent(
            self.cluster.cluster_id, RESIZE, str(size), self.context.clock.now()
        )

    def _print(self, decision: Resize, plan: Plan | None, done: Sequence[Member] | None = None) -> None:
        click.echo(render(resize_report(decision, plan, self.cluster.name, done), Format(self.output)))

    @contextmanager
    def _undone_on_failure(self, before: Sequence[Member]) -> Iterator[None]:
        """End what was launched if the block fails, so that the cluster is what it was before."""
        context = self.context
        try:
            yield
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed ({error})"
            context.emit(Warned(message=f"{reason}: ending what was launched"))
            self._undo_or_say(before)
            raise

    def _undo_or_say(self, before: Sequence[Member]) -> None:
        """Undo after a failure; a second failure must not hide the first, but what is left is named."""
        context, name = self.context, self.cluster.name
        old = {member.instance.instance_id for member in before}
        try:
            self._remember(len(before) or self.size)
            wait_for_consistency(self.cluster, clusters=context.clusters, clock=context.clock)
            now = reconcile_members(
                self.cluster, cloud=self.cloud, clusters=context.clusters, clock=context.clock
            )
            self._end([member for member in now if member.instance.instance_id not in old])
        except (DlcloudError, KeyboardInterrupt) as error:
            told = error.message if isinstance(error, DlcloudError) else "interrupted again"
            message = (
                f"{name} may have more than its {len(before)} instance(s) ({told}): "
                f"dlcloud resize {name} {len(before)}"
            )
            context.emit(Warned(message=message))

    def _raise_for(
        self,
        grown: GrowResult,
        usable: Sequence[Member],
        before: Sequence[Member],
        unfit: dict[str, DlcloudError],
    ) -> None:
        if len(usable) >= self.size:
            return
        failed = {**grown.lost, **unfit}
        nothing = len(usable) <= len(before) and not failed
        short = no_capacity(Provisioned(members=list(usable), refusals=grown.refusals), self.size)
        if nothing and grown.refusals:
            self._remember(len(usable))  # no later `up` is to ask for what could not be had
            short.result_shown = True
            raise short
        told = [f"{self.cluster.name} has {len(usable)} of {self.size} instance(s)"]
        told += [f"  {name}: {error.message}" for name, error in failed.items()]
        told += short.message.splitlines()[1:]
        partial = PartialError("\n".join(told), f"dlcloud resize {self.cluster.name} {self.size}")
        partial.result_shown = True
        raise partial


def _refuse_state(cluster: Cluster) -> None:
    """Refuse a cluster that is not up and idle.

    Raises:
        RecipeError: Another command has begun to bring it up, or to take it down.
    """
    if cluster.state is ClusterState.READY:
        return
    if cluster.state in {ClusterState.STOPPING, ClusterState.DOWN}:
        raise RecipeError(f"{cluster.name} is being taken down", f"dlcloud down {cluster.name}")
    raise RecipeError(
        f"{cluster.name} is {cluster.state}: an up works on it, or was cut off",
        "wait for it, or run the same up again; with --keep the cluster stays and can be resized",
    )
