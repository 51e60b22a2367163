"""`dlcloud resize`: more or fewer instances for a cluster that is up."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.lifecycle import confirm_spending
from dlcloud.app.terminal.screen import say
from dlcloud.app.termination import terminating, termination_of, undo_on_failure
from dlcloud.elastic.agents import program_of as training_of
from dlcloud.launch.acquire import lock_cluster
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.launch.provision import Provisioned, capacity_error
from dlcloud.launch.setup import prepare_all, requirements_on
from dlcloud.model.cluster import Cluster, ClusterState, Member
from dlcloud.model.errors import DlcloudError, PartialError, RecipeError
from dlcloud.model.events import PREFLIGHT, stage
from dlcloud.planning.plan import Plan
from dlcloud.planning.resize import Resize, decide_size, refuse_size
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.plan_tables import resize_report
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.runs.program import program_of
from dlcloud.store.clusters import KEEP_FREE, RESIZE


def run(
    context: Context,
    *,
    cluster: str,
    size: int,
    dry_run: bool,
    yes: bool,
    cidrs: tuple[str, ...] = (),
    keep_free: int | None = None,
    output: str,
) -> int | None:
    """Grow or shrink a cluster to `size` instances.

    Args:
        context: The collaborators.
        cluster: Its name or id.
        size: The number of instances that it is to have.
        dry_run: Only show what would be launched and terminated.
        yes: Do not ask.
        cidrs: The networks that may reach new instances; by default the caller's own address.
        keep_free: The number of reserved instances that a training leaves idle for others.
        output: The format.
    """
    status = context.forward_command(cluster)
    if status is not None:
        return status
    resizer = Resizer(
        context=context,
        cluster=context.find_cluster(cluster),
        size=size,
        cidrs=cidrs,
        output=output,
        keep_free=keep_free,
    )
    if dry_run:
        resizer.show()
    else:
        resizer.run(yes=yes)
    return None


@dataclass
class Resizer:
    """One `dlcloud resize`, with the options of the command."""

    context: Context
    cluster: Cluster
    size: int
    cidrs: tuple[str, ...]
    output: str
    keep_free: int | None = None

    @cached_property
    def recipe(self) -> Recipe:
        """The cluster's recipe, for the size that it is to have."""
        recipe = read_recipe(self.cluster.recipe_text, self.cluster.recipe_path)
        refuse_size(recipe, self.size)
        return recipe.resized(self.size)

    @cached_property
    def requirements(self) -> str:
        """The packages of the cluster's program; new instances are set up with them."""
        folder = Path(self.cluster.recipe_path).parent
        if self.recipe.workload.elastic is not None:
            return training_of(self.recipe, folder, run="").requirements
        return program_of(self.recipe, folder).requirements

    @cached_property
    def launcher(self) -> Launcher:
        return self.context.machines.launcher(self.cluster)

    def show(self) -> None:
        """Print what would be done, as the result."""
        self._check_keep_free()
        if not self._is_running:
            self._check_state(self.cluster)
        members = self.launcher.members()
        decision = self._decide(members)
        self._print(decision, self._plan(members) if decision.launch else None)

    def run(self, *, yes: bool) -> None:
        """Resize, and print what was done.

        Raises:
            CapacityError, QuotaError: None of the missing instances was launched.
            PartialError: Some were not launched, reached or set up.
        """
        self._check_keep_free()
        if self._is_running:
            self._request_size()
            return
        self._check_state(self.cluster)
        _ = self.recipe, self.requirements  # their faults come before anything is touched
        clusters = self.context.clusters
        with lock_cluster(self.cluster, paths=self.context.paths):
            self._check_state(clusters.find(self.cluster.cluster_id) or self.cluster)
            members = self.launcher.members()
            decision = self._decide(members)
            plan = self._plan(members) if decision.launch else None
            if plan is not None:
                say(render(resize_report(decision, plan), Format.TABLE) + "\n", err=True)
                confirm_spending(self.context, plan, yes=yes, cluster=self.cluster)
            intent_id = self._store_size(self.size)
            count = self._grow(plan, members) if plan is not None else self._shrink()
            clusters.end_intent(intent_id, f"{count} instances", self.context.clock.now())

    @property
    def _is_training(self) -> bool:
        """True if an elastic job runs, whose controller does the resizing, at a step of the training."""
        is_elastic = self.recipe.workload.elastic is not None
        return is_elastic and self.cluster.state is ClusterState.RUNNING

    @property
    def _is_running(self) -> bool:
        """True if the `up` in charge does the resizing: of a training, or of a command with checkpoints.

        Raises:
            RecipeError: It runs a command that could not continue.
        """
        workload, name = self.recipe.workload, self.cluster.name
        is_running = self.cluster.state is ClusterState.RUNNING
        if not is_running or workload.command is None or workload.elastic or self.recipe.experiment:
            return self._is_training
        if not workload.checkpoints:
            raise RecipeError(
                f"{name} runs a command that keeps no checkpoints: a resize would lose its work",
                f"name them in workload.checkpoints; dlcloud status {name} shows when it has ended",
            )
        if workload.resume == "auto" and self.recipe.is_one_job:
            raise RecipeError(
                f"{name} runs one job with resume: auto, which needs the same number of processes again",
                "resume: none, if the script resumes by itself on other numbers",
            )
        return True

    def _check_keep_free(self) -> None:
        """Refuse to keep reserved instances free where no controller would do it."""
        if self.keep_free is None or (self._is_training and self.recipe.instances.uses_reservations):
            return
        raise RecipeError(
            f"--keep-free belongs to a training under way with instances.reservations; {self.cluster.name} "
            "is none",
            f"dlcloud resize {self.cluster.name} {self.size}",
        )

    def _check_state(self, cluster: Cluster) -> None:
        """Refuse a cluster that is not up and idle."""
        name = cluster.name
        if self.context.controller_instance_id and cluster.state is not ClusterState.RUNNING:
            raise RecipeError(
                f"the training of {name} has ended", f"dlcloud down {name} downloads its results"
            )
        if cluster.state in {ClusterState.STOPPING, ClusterState.DOWN}:
            raise RecipeError(f"{name} is being taken down", f"dlcloud down {name}")
        if cluster.state is not ClusterState.READY:
            raise RecipeError(
                f"{name} is {cluster.state}: an up works on it, or was cut off",
                "wait for it, or run the same up again; with --keep the cluster stays and can be resized",
            )

    def _request_size(self) -> None:
        """Store the size; the `up` in charge looks at it, and so does the next one after a crash."""
        intent_id = self._store_size(self.size)
        kind = "worker" if self._is_training else "instance"
        message = f"requested {self.size} {kind}(s) for {self.cluster.name}"
        if self.keep_free is not None:
            message += f", {self.keep_free} reserved instance(s) stay free"
            self.context.clusters.begin_intent(
                self.cluster.cluster_id, KEEP_FREE, str(self.keep_free), self.context.clock.now()
            )
        self.context.clusters.end_intent(intent_id, message, self.context.clock.now())
        section = Section(heading="", titles=("done",), rows=[(message,)])
        report = Report(command="resize", records=[{"done": message}], sections=[section], empty="")
        say(message if self.output == Format.TABLE else render(report, Format(self.output)))

    def _grow(self, plan: Plan, before: Sequence[Member]) -> int:

        context = self.context
        with self._undoing_growth(before):
            grown = self.launcher.grow(plan)
            types = {m.instance.instance_id: m.instance.instance_type for m in grown.members}
            unfit = prepare_all(
                grown.connections,
                self.recipe.setup,
                lambda name: requirements_on(self.launcher, types[name], self.requirements),
                clock=context.clock,
                emit=context.emit,
            )
        earlier_ids = {member.instance.instance_id for member in before}
        new_unfit = unfit.keys() - earlier_ids
        usable = [m for m in grown.members if m.instance.instance_id not in unfit]
        surplus = self._decide(usable).end  # a launch that was cut off may have given more than is asked for
        useless = [m for m in grown.members if m.instance.instance_id in new_unfit]
        self._end([*useless, *surplus], of=grown.members)
        self._print(self._decide(before), plan, result=[m for m in usable if m not in surplus])
        self._check_result(grown, usable, before, unfit)
        return len(usable) - len(surplus)

    def _shrink(self) -> int:
        members = self.launcher.reconcile(consistent=True)
        decision = self._decide(members)
        self._end(decision.end, of=members)
        left = [member for member in members if member not in decision.end]
        self._print(decision, None, result=left)
        if len(left) < self.size:
            raise PartialError(
                f"{self.cluster.name} has {len(left)} instance(s): others have ended meanwhile",
                f"dlcloud resize {self.cluster.name} {self.size}",
            )
        return len(left)

    def _decide(self, members: Sequence[Member]) -> Resize:

        instances = self.recipe.instances
        decision = decide_size(members, self.size, base=instances.on_demand_base, rounds=instances.rounds)
        if not self._is_running:
            return decision
        reason = f"the training continues with {instances.minimum} or more workers"
        if self.recipe.is_one_job:
            reason = "the job stops, keeps its checkpoints, and starts again on all instances"
        elif not self._is_training:
            reason = "programs of instances that end are asked to stop, and keep their checkpoints"
        return replace(decision, reasons=(*decision.reasons, reason))

    def _plan(self, members: Sequence[Member]) -> Plan:
        context = self.context
        with stage(context.emit, context.clock, PREFLIGHT):
            return self.launcher.plan(self.recipe, cidrs=self.cidrs, size=self.size, members=members)

    def _store_size(self, size: int) -> int:
        """Store the size before anything is done, so that after a crash the next command reaches it."""
        return self.context.clusters.begin_intent(
            self.cluster.cluster_id, RESIZE, str(size), self.context.clock.now()
        )

    def _print(self, decision: Resize, plan: Plan | None, result: Sequence[Member] | None = None) -> None:

        say(render(resize_report(decision, plan, self.cluster.name, result), Format(self.output)))

    def _end(self, members: Sequence[Member], *, of: Sequence[Member]) -> None:
        """End some of the living instances; no signal breaks that off."""
        kept_ids = [member.instance.instance_id for member in of if member not in members]
        command = f"dlcloud resize {self.cluster.name} {self.size}"
        with terminating(self.launcher, keeping=kept_ids, command=command):
            self.launcher.shrink(members)

    def _undoing_growth(self, before: Sequence[Member]) -> AbstractContextManager[None]:
        """Terminate the instances that were launched if the block fails."""
        name, earlier_ids = self.cluster.name, {member.instance.instance_id for member in before}
        command = f"dlcloud resize {name} {len(before)}" if before else f"dlcloud down {name}"

        def undo() -> None:
            self._store_size(len(before) or self.size)
            with terminating(self.launcher, keeping=earlier_ids, command=command):
                members = self.launcher.reconcile(consistent=True)
                self.launcher.shrink([m for m in members if m.instance.instance_id not in earlier_ids])

        return undo_on_failure(
            undo,
            action="terminating what was launched",
            left=f"{name} may have more than its {len(before)} instance(s)",
            termination=termination_of(self.launcher, keeping=earlier_ids, command=command),
        )

    def _check_result(
        self,
        grown: LaunchedMembers,
        usable: Sequence[Member],
        before: Sequence[Member],
        unfit: Mapping[str, DlcloudError],
    ) -> None:
        """Raise where the cluster has fewer instances than were asked for."""
        if len(usable) >= self.size:
            return

        name, failed = self.cluster.name, {**grown.lost, **unfit}
        refused = capacity_error(Provisioned(members=list(usable), refusals=grown.refusals), self.size)
        if len(usable) <= len(before) and not failed and grown.refusals:
            self._store_size(len(usable))  # a later `up` must not request the refused instances again
            refused.result_shown = True
            raise refused
        lines = [f"{name} has {len(usable)} of {self.size} instance(s)"]
        lines += [f"  {instance_id}: {error.message}" for instance_id, error in failed.items()]
        lines += refused.message.splitlines()[1:]
        raise PartialError("\n".join(lines), f"dlcloud resize {name} {self.size}", result_shown=True)
