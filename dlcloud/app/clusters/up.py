"""`dlcloud up`: plan, launch, run, report, destroy."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

from dlcloud.analysis.result import Run
from dlcloud.app.account.caches import trim_caches
from dlcloud.app.choice import regions_of
from dlcloud.app.clusters.batch import BatchUp, take_late, uses_batch
from dlcloud.app.clusters.experiment import ExperimentUp, experiment_of
from dlcloud.app.clusters.moves import Moves
from dlcloud.app.clusters.workload import RecipeWorkload, read_workload
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import (
    acquire_for_command,
    confirm_spending,
    destroy_unfinished,
    detached_error,
    plan_everywhere,
)
from dlcloud.app.packages import warn_of_requirements
from dlcloud.app.results.rows import commands_again, rows_of_runs
from dlcloud.app.results.training import newest_training
from dlcloud.app.terminal.console import MOST_LINES
from dlcloud.app.terminal.screen import Show, say
from dlcloud.app.terminal.signals import is_interrupted
from dlcloud.app.termination import destroy_at_end, files_left, stop_ending
from dlcloud.elastic.controller import TrainingControl
from dlcloud.elastic.deadline_scaler import RegionLeftError
from dlcloud.elastic.rescue import bring_home
from dlcloud.launch.acquire import clusters_at_work, new_cluster, resolve_cluster
from dlcloud.launch.data_access import prepare_access, replicating
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Cluster, ClusterState, Member
from dlcloud.model.errors import (
    BudgetError,
    CapacityError,
    CloudError,
    DlcloudError,
    InstanceError,
    QuotaError,
    RecipeError,
)
from dlcloud.model.events import PREFLIGHT, Info, Warned, stage
from dlcloud.model.instance import Market
from dlcloud.model.money import billed_seconds
from dlcloud.planning.plan import Plan
from dlcloud.planning.regions import dearest, second_region
from dlcloud.recipe.batch import describe_batch, refuse_no_batch
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.cost_tables import View, cost_report
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.runs.nodes import run_workload
from dlcloud.runs.replacement import Interruptions, Replacements, interruptions_of
from dlcloud.runs.run import Runner


def run(
    context: Context,
    *,
    recipe: str | Recipe,
    overrides: Overrides | None = None,
    name: str = "",
    cidrs: tuple[str, ...] = (),
    dry_run: bool = False,
    yes: bool = False,
    keep: bool = False,
    fresh: bool = False,
    retry_failed: bool = False,
    on_batch: bool = False,
    html: str = "",
    show: Show,
) -> None:
    """Run a recipe and show what it costs.

    Args:
        context: The collaborators.
        recipe: A file, the name of a bundled recipe, or a recipe itself.
        overrides: Changes of the recipe for this `up`.
        name: The cluster's name; by default one is derived from the recipe's.
        cidrs: The networks that may reach the instances; by default the caller's own address.
        dry_run: Show the plan; create nothing.
        yes: Do not ask before money is spent.
        keep: Keep the cluster up afterwards.
        fresh: Measure again what an interrupted run had measured; run all trials of an experiment again.
        retry_failed: Run the trials of an experiment again that were given up.
        on_batch: AWS Batch runs the trials of the experiment.
        html: The file of an experiment's page; empty for none.
        show: Takes the plan or the results.
    """
    workload = read_workload(context, recipe, overrides, keep=keep)
    workload.make_buckets()
    experiment = experiment_of(context, workload, fresh=fresh, retry_failed=retry_failed)
    if experiment is None and html:
        raise RecipeError("--html is for a recipe with an experiment", "dlcloud cost-report --html FILE")
    if experiment is not None:
        experiment.html = html
        if html:
            from dlcloud.report.page import refuse_missing_plot  # noqa: PLC0415  only for who asks for a page

            refuse_missing_plot()
        if not experiment.left and not dry_run:
            # An `up` that was killed after the last trial has left its instances.
            destroy_unfinished(context, workload.file)
        if experiment.is_over(show):
            return
    if on_batch:
        refuse_no_batch(workload.recipe)
    up = Up(
        context=context,
        workload=workload,
        show=show,
        experiment=experiment,
        name=name,
        cidrs=cidrs,
        fresh=fresh,
        on_batch=on_batch,
    )
    # Decided here, once; `acquire_cluster` decides by the same rule again, under the lock.
    cluster = resolve_cluster(workload.file, name=name, store=context.store)
    if cluster is None and is_trained(workload, show):
        return
    if dry_run:
        context.change_nothing()
        plan = up.plan(cluster)
        warn_of_requirements(workload.recipe.setup.requirements, context.emit)
        show(up.report(plan, cluster))
    else:
        plan = up.plan(cluster)
        up.confirm(plan, cluster, yes=yes)
        while not up.run(plan):
            plan = up.move_on(plan)


def is_trained(workload: RecipeWorkload, show: Show) -> bool:
    """Show that the last step of a training is stored already; True if that is so."""
    workload.check()
    step, uri = workload.last_step(), workload.recipe.checkpoints
    if not step:
        return False
    section = Section(
        heading=f"nothing is launched: the last step, {step}, is in {uri}",
        titles=("to train on", ""),
        rows=[
            ("more epochs in the command or the script", "the next up continues from that step"),
            ("another prefix below checkpoints", "the next up trains from the start"),
        ],
    )
    record = {"checkpoints": uri, "last_step": step, "launched": 0}
    show(Report(command="up", records=[record], sections=[section], empty=""))
    return True


@dataclass(kw_only=True)
class Up:
    """One `dlcloud up`."""

    context: Context
    workload: RecipeWorkload
    show: Show
    experiment: ExperimentUp | None = None
    name: str = ""
    cidrs: tuple[str, ...] = ()
    fresh: bool = False
    on_batch: bool = False

    @cached_property
    def moves(self) -> Moves:
        """The other regions, if the recipe names several."""
        return Moves(context=self.context)

    def plan(self, cluster: Cluster | None) -> Plan:
        """Check everything that can be checked before anything is created, and decide.

        Of a recipe with several regions, the workload is placed in the cheapest one.

        Args:
            cluster: The one that this `up` continues; None for a new one.

        Raises:
            CloudError: Every region refuses the plan.
        """
        context, workload = self.context, self.workload
        if cluster is None:
            workload.check_deadline()  # the rest was checked by `is_trained`
        else:
            workload.check()
            if controller := context.clusters.controller_instance_id(cluster.cluster_id):
                raise detached_error(cluster, controller)
        self._warn_of_others()
        _ = workload.environment  # a secret that is missing is refused before anything is asked of EC2
        with stage(context.emit, context.clock, PREFLIGHT):
            has_instances = cluster is not None and bool(context.clusters.members(cluster.cluster_id))
            if cluster is not None and (has_instances or not workload.recipe.regions):
                regions = [cluster.region]
            else:  # also after an `up` that was killed before any region gave an instance
                regions = self._regions()
            if len(regions) > 1:
                plan, *self.moves.elsewhere[:] = self._plan_everywhere(regions)
                workload.place(plan.region, second_region(plan))
            else:
                workload.place(regions[0])
                plan = self._launcher(cluster).plan(self._recipe, cidrs=self.cidrs)
        notes = [*workload.notes(), *([] if self.experiment is None else self.experiment.notes())]
        notes += describe_batch(workload.recipe) if self.on_batch else []
        if cluster is not None and cluster.state is ClusterState.READY:
            why = "it is up, and stays so" if self.name else "it was kept up when its run failed"
            notes.append(f"{cluster.name} is used again: {why}")
        if source := workload.file.region_source:
            notes.append(f"region {plan.region}, by {source}: neither recipe nor --region names one")
        return replace(plan, reasons=(*plan.reasons, *notes))

    def report(self, plan: Plan, cluster: Cluster | None) -> Report:
        """Return what the plan shows; a cluster that was named and is up stays up."""
        stays = bool(self.name) and cluster is not None and cluster.state is ClusterState.READY
        return plan_report(replace(plan, keep=plan.keep or stays))

    @property
    def _recipe(self) -> Recipe:
        recipe = self.moves.remaining(self.workload.recipe)
        return recipe if self.experiment is None else self.experiment.resize(recipe)

    def _regions(self) -> list[str]:
        recipe = self.workload.recipe
        return regions_of(self.context, recipe.cloud, recipe.open_regions, recipe.geography)

    def _launcher(self, cluster: Cluster | None) -> Launcher:
        cluster = cluster or new_cluster(self.workload.file, name=self.name, clock=self.context.clock)
        return self.context.machines.launcher(cluster)

    def _plan_everywhere(self, regions: Sequence[str]) -> list[Plan]:
        """Plan in all regions in parallel; return the plans, the cheapest first."""
        places = {}
        for region in regions:
            self.workload.place(region)
            places[region] = self._launcher(None), self._recipe
        return plan_everywhere(places, cidrs=self.cidrs)

    def _warn_of_others(self) -> None:
        """Emit which other `up` runs the same recipe now: it pays for the same work a second time."""
        for name, holder in clusters_at_work(self.workload.file, store=self.context.store).items():
            shared = self.workload.recipe.cloud == "local"
            effect = "both measure on this machine, and disturb each other" if shared else "both are billed"
            message = f"{holder} runs this recipe on {name} already: {effect}"
            self.context.emit(Warned(message=message))

    def confirm(self, plan: Plan, cluster: Cluster | None, *, yes: bool) -> None:
        """Show the plan, and ask before money is spent.

        Args:
            plan: What is launched.
            cluster: The one that the plan continues; None for a new one.
            yes: Do not ask.
        """
        context, workload = self.context, self.workload
        if not context.quiet:
            say(render(self.report(plan, cluster), Format.TABLE) + "\n", err=True)
        confirm_spending(context, dearest([plan, *self.moves.elsewhere]), yes=yes, cluster=cluster)
        if workload.recipe.cloud == "local":
            trim_caches(context)

    def move_on(self, plan: Plan) -> Plan:
        """Return the plan of the next region that EC2 would carry out, and place the workload there.

        Raises:
            CloudError: As of `Moves.following`.
        """
        while True:
            following = self.moves.following(plan, lambda: self._plan_everywhere(self._regions()))
            self.workload.place(following.region, second_region(following))
            try:
                return self._launcher(None).check(following, self._recipe)
            except CloudError as error:
                if not self.moves.elsewhere and not self.moves.left:
                    raise
                self.context.emit(Warned(message=f"{following.region} is left out: {error.message}"))

    def run(self, plan: Plan) -> bool:
        """Carry the plan out, show the result, and destroy what was launched, whatever happens.

        Returns:
            False if its region gave too few instances, or lost them, and another one can be tried; nothing
            is left there.
        """
        context, workload = self.context, self.workload
        try:
            with acquire_for_command(context, workload.file, name=self.name) as acquired:
                launcher = context.machines.launcher(acquired.cluster)
                if context.clusters.last_hand_over(acquired.cluster.cluster_id) is not None:
                    self._refuse_detached(launcher)
                failed_s = workload.recipe.keep.failed_s
                # `keep.failed` keeps it until its run succeeds, if nothing else is left on it.
                ends = bool(acquired.kept and not self.name and failed_s and not files_left(launcher))
                held = replace(acquired, kept=acquired.kept and not ends)
                with (
                    self._tracked(launcher),
                    destroy_at_end(launcher, held, keep=plan.keep or held.kept, failed_s=failed_s),
                ):
                    if self.on_batch or uses_batch(context, acquired.cluster):
                        self._run_on_batch(launcher, plan)
                        return True
                    prepare_access(launcher, workload.recipe)
                    members = launcher.launch(plan).members
                    self.moves.begin(acquired.cluster)
                    if acquired.kept:
                        stop_ending(launcher, members)
                    with replicating(launcher, workload.recipe):
                        if workload.is_elastic:
                            self._train(launcher, plan, members)
                        else:
                            self.measure(launcher, plan, members)
        except (CapacityError, QuotaError) as error:
            if not self.moves.can_leave(acquired.cluster, plan, workload.recipe):
                raise
            self.moves.preferred = error.region if isinstance(error, RegionLeftError) else ""
            return False
        if workload.is_elastic:
            # Only now is the bill of every instance known.
            self.show(newest_training(context, acquired.cluster.name, command="up"))
        return True

    def _refuse_detached(self, launcher: Launcher) -> None:
        """Finish a hand-over that an earlier `up --detach` began and that was cut off.

        Raises:
            RecipeError: The instance to which the cluster was handed over is in charge.
        """
        from dlcloud.detached.handover import HandOver  # noqa: PLC0415  only after an `up --detach`

        if HandOver(managed=launcher, database=self.context.database).finish():
            controller = launcher.store.clusters.controller_instance_id(launcher.cluster_id)
            raise detached_error(launcher.cluster, controller or "")

    def _tracked(self, launcher: Launcher) -> AbstractContextManager[None]:
        """Send results to the recipe's tracker during the block."""
        if self.workload.recipe.track is None:
            return nullcontext()
        from dlcloud.app.results.tracking import tracked  # noqa: PLC0415  only where a tracker is named

        return tracked(self.context, self.workload.recipe, lambda: self._runs(launcher))

    def _runs(self, launcher: Launcher) -> list[Run]:
        """Return the runs of the cluster, and those of the experiment on all clusters."""
        runs = self.context.runs.of_cluster(launcher.cluster_id)
        if self.experiment is None:
            return runs
        own = {run.run_id for run in runs}
        earlier = self.context.runs.of_experiment(self.experiment.records.digest)
        return [*(run for run in earlier if run.run_id not in own), *runs]

    def _run_on_batch(self, launcher: Launcher, plan: Plan) -> None:
        """Let AWS Batch run the trials; print them."""
        experiment = self.experiment
        if experiment is None or not self.on_batch:
            message = f"the trials of {launcher.cluster.name} are in the queue of AWS Batch"
            recipe = self.workload.file.path or self.workload.recipe.name
            raise RecipeError(message, f"dlcloud up {recipe} --on batch continues with them")
        self.context.at_exit(partial(take_late, self.context, launcher))
        try:
            BatchUp(context=self.context, experiment=experiment, launcher=launcher, plan=plan).run()
        except DlcloudError as error:
            error.result_shown = experiment.print(self.show)
            raise
        experiment.print(self.show)

    def _train(self, launcher: Launcher, plan: Plan, members: list[Member]) -> None:
        try:
            control = TrainingControl(
                rehearsal=self.workload.rehearsal(),
                may_relaunch=True,
                elsewhere=partial(self.moves.spot_elsewhere, plan),
            )
            workload, recipe = self.workload, self.moves.remaining(self.workload.recipe)
            if recipe is not workload.recipe:
                workload = replace(workload, file=replace(workload.file, recipe=recipe))
            workload.train(launcher, plan, members, control)
        except KeyboardInterrupt:
            bring_home(launcher, self.workload.recipe)
            raise

    def measure(self, launcher: Launcher, plan: Plan, members: list[Member]) -> None:
        """Run the workload or the experiment on instances that are up, and print its results."""
        workload = self.workload
        runner = Runner(
            managed=launcher,
            recipe=workload.recipe,
            program=workload.program,
            image_id=plan.machine.image.image_id,
            fresh=self.fresh,
            environment=workload.environment,
            recipe_folder=workload.folder,
            is_live=len(members) <= MOST_LINES,
            replacements=self._replacements(launcher, plan, members),
            keeps_checkpoints=True,
        )
        if self.experiment is not None:
            self._experiment(self.experiment, runner, launcher, plan, members)
            return
        runs = self.context.runs.of_cluster(launcher.cluster_id)
        earlier = {run.run_id for run in runs if run.ended_at}
        try:
            run_workload(runner, members)
        except DlcloudError as error:
            error.result_shown = self._print_results(launcher, earlier)
            raise
        finally:
            if (interruptions := self._interruptions(launcher)) is not None:
                self.context.emit(Info(message=interruptions.describe()))
        self._print_results(launcher, earlier)

    def _interruptions(self, launcher: Launcher) -> Interruptions | None:
        return interruptions_of(self.context.clusters, *self.moves.left, launcher.cluster_id)

    def _replacements(self, launcher: Launcher, plan: Plan, members: Sequence[Member]) -> Replacements:
        """Return what replaces instances that are reclaimed: within the time that the budget leaves them."""
        context, begun_at = self.context, min(member.instance.launched_at for member in members)
        recipe = self.workload.recipe
        # Several runs stay where they are: others of them may still be at work.
        leaves = bool(recipe.regions) and (len(members) == 1 or recipe.is_one_job)

        def launch(
            size: int, connected: Collection[str], leaving: Collection[str], lost: Member | None
        ) -> list[Member]:
            if is_interrupted():  # the instance was lost because this command terminates it
                raise InstanceError("this command was interrupted")
            rest = plan.shortened(billed_seconds(begun_at, context.clock.now()))
            if rest is None:
                raise BudgetError("budget.max_hours leaves no time for it")
            living = launcher.describe_instances()
            still_there = sum(name in living and living[name].alive for name in leaving)
            count = size + still_there
            rest = replace(rest, max_count=count, min_count=min(rest.min_count, count))
            others = is_last = None
            if lost is not None:  # its pool comes last, after another region if that was spot
                pool = lost.instance
                others = rest.without(pool.instance_type, pool.market, pool.zone)
                is_last = leaves and pool.market is Market.SPOT
            for tried in filter(None, (others, None if is_last else rest)):
                grown = launcher.grow(tried, connected={*connected, *leaving})
                existing = {*connected, *leaving}
                new = [one for one in grown.members if one.instance.instance_id not in existing]
                if new:
                    return new
            return []

        return Replacements(members, launch=launch, clock=context.clock, emit=context.emit, leaves=leaves)

    def _experiment(
        self, experiment: ExperimentUp, runner: Runner, launcher: Launcher, plan: Plan, members: list[Member]
    ) -> None:
        try:
            experiment.run(runner, launcher, plan, members)
        except DlcloudError as error:
            error.result_shown = experiment.print(self.show)
            raise
        experiment.print(self.show)

    def _print_results(self, launcher: Launcher, earlier: set[str]) -> bool:
        """Print what was measured by this `up`; True if there was anything."""
        context = self.context
        if (interruptions := self._interruptions(launcher)) is not None:
            with suppress(DlcloudError):  # EC2 says when it ended what it reclaimed: that bill is final
                launcher.reconcile()
        runs = context.runs.of_cluster(launcher.cluster_id)
        run_ids = [run.run_id for run in runs if run.run_id not in earlier]
        rows = rows_of_runs(context.measurements, run_ids, context.clock.now())
        if rows:
            commands = commands_again(context, rows)
            report = cost_report(rows, View(details=True), command="up", commands=commands)
            values = {} if interruptions is None else interruptions.to_values()
            extra = {"cluster": launcher.cluster.name, **values}
            self.show(replace(report, extra=extra))
        return bool(rows)
