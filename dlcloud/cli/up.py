"""`dlcloud up`: plan, launch, run, report, destroy."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.notify import notify_option
from dlcloud.cli.options import cidr_option, output_option, verbose_option
from dlcloud.cli.overrides import override_options
from dlcloud.cli.routes import refuse_missing_program
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import PREFLIGHT, stage
from dlcloud.report.table import Format, render

if TYPE_CHECKING:
    from dlcloud.cli.context import Context
    from dlcloud.elastic.rehearsal import Rehearsal
    from dlcloud.launch.acquire import RecipeFile
    from dlcloud.launch.launcher import Launcher
    from dlcloud.planning.plan import Plan
    from dlcloud.recipe.job_environment import JobEnvironment
    from dlcloud.recipe.overrides import Overrides
    from dlcloud.runs.program import Program

NOTE_WIDTH = 76


@click.command("up")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("--keep", is_flag=True, help="Keep the instances up afterwards.")
@click.option("--name", default="", help="The cluster's name; one that is up and was kept is used again.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@cidr_option("the instances")
@click.option("--detach", is_flag=True, help="Leave an elastic training to its own coordinator.")
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted run had measured.")
@override_options
@notify_option("up")
@output_option
@verbose_option
def command(
    *,
    recipe: str,
    dry_run: bool,
    keep: bool,
    name: str,
    yes: bool,
    cidrs: tuple[str, ...],
    detach: bool,
    fresh: bool,
    overrides: "Overrides",
    output: str,
    verbose: bool,
) -> None:
    """Run RECIPE (a file, or the name of a bundled recipe) and print what it costs.

    --type, --region, --market, --count, --setting, --env and --secret change the recipe for this `up`; with
    the same ones, the next `up` finds its cluster again.

    Launches the instances, sets them up over SSH, runs the workload, stores what it measures, and terminates
    them. Ctrl-C cleans up. An `up` that was cut off is taken up again by the next one of the same recipe;
    cases that a benchmark had finished before are not measured again.

    With --detach it returns once the on-demand instance that coordinates a training controls it, too: this
    machine may be off then. `status`, `logs`, `training`, `resize` and `exec` ask that instance, from any
    machine with the account; `down` brings the results home and ends everything.
    """
    from dlcloud.cli.context import Context

    with Context("up", verbose=verbose) as context:
        up = Up(
            context=context,
            file=_read_file(recipe, overrides, keep=keep),
            changes=str(overrides),
            name=name,
            cidrs=cidrs,
            output=output,
            fresh=fresh,
            detach=detach,
        )
        if dry_run:
            up.show(up.plan())
        elif not up.resume_detached():
            up.run(up.plan(), yes=yes)


@dataclass
class Up:
    """One `dlcloud up`, with the options of the command."""

    context: "Context"
    file: "RecipeFile"
    name: str
    cidrs: tuple[str, ...]
    output: str
    fresh: bool = False
    detach: bool = False
    changes: str = ""

    @cached_property
    def program(self) -> "Program":
        """The program that the recipe measures."""
        from dlcloud.runs.program import program_of

        return program_of(self.file.recipe, self._folder)

    @cached_property
    def environment(self) -> "JobEnvironment":
        """The environment of the program, with the values of its secrets."""
        from dlcloud.cli.program_environment import environment_of

        return environment_of(self.context, self.file.recipe, self._folder)

    @property
    def _folder(self) -> Path:
        return Path(self.file.path).parent

    @property
    def _is_elastic(self) -> bool:
        return self.file.recipe.workload.elastic is not None

    @cached_property
    def _earlier_cluster(self) -> Cluster | None:
        """The cluster that this `up` continues."""
        from dlcloud.launch.acquire import resolve_cluster

        return resolve_cluster(self.file, name=self.name, store=self.context.store)

    @property
    def _controller_id(self) -> str | None:
        """The instance that controls that cluster, if it is detached."""
        cluster = self._earlier_cluster
        clusters = self.context.clusters
        return None if cluster is None else clusters.controller_instance_id(cluster.cluster_id)

    def resume_detached(self) -> bool:
        """Look after the cluster that an earlier `up --detach` left to its coordinator; False if none did."""
        cluster = self._earlier_cluster
        if not self.detach or cluster is None or self._controller_id is None:
            return False
        from dlcloud.cli.detach import print_detached, restart_dead_controller

        restart_dead_controller(self.context, cluster, lambda: self.environment)
        print_detached(self.context, cluster, self.output)
        return True

    def plan(self) -> "Plan":
        """Check everything that can be checked before anything is created, and decide."""
        from dlcloud.cli.lifecycle import detached_error
        from dlcloud.launch.acquire import new_cluster

        context = self.context
        self._check_program()
        cluster = self._earlier_cluster
        if cluster is None:
            self._check_deadline()
        if cluster is not None and self._controller_id is not None:
            raise detached_error(cluster, self._controller_id)
        _ = self.environment  # a secret that is missing is refused before anything is asked of EC2
        with stage(context.emit, context.clock, PREFLIGHT):
            cluster = cluster or new_cluster(self.file, name=self.name, clock=context.clock)
            launcher = context.launcher(cluster)
            # A successor first goes on with those that are there.
            size = len(launcher.members()) if self._term_of(cluster) else None
            plan = launcher.plan(self.file.recipe, cidrs=self.cidrs, size=size)
        return replace(plan, reasons=(*plan.reasons, *self._notes()))

    def _notes(self) -> Iterator[str]:
        """Yield what the plan states of the options and the files of this `up`."""
        from dlcloud.launch.files import check_files

        notes = [f"the recipe is changed by {self.changes}"] if self.changes else []
        if self.file.recipe.workload.files is not None:
            notes.append(check_files(self._folder / self.file.recipe.workload.files).describe())
        yield from (textwrap.fill(note, NOTE_WIDTH, break_on_hyphens=False) for note in notes)

    def _term_of(self, cluster: Cluster) -> int:
        """Return the term in which this instance took the control of its cluster over; 0: it did not."""
        if not self.context.controller_instance_id:
            return 0
        from dlcloud.store.clusters import SUCCESSION

        intents = self.context.clusters.intents(cluster.cluster_id, SUCCESSION)
        return int(intents[-1].detail) if intents else 0

    def show(self, plan: "Plan") -> None:
        """Print the plan as the result."""
        from dlcloud.report.plan import plan_report

        click.echo(render(plan_report(plan, detached=self.detach), Format(self.output)))

    def run(self, plan: "Plan", *, yes: bool) -> None:
        """Carry the plan out, print the result, and destroy what was launched, whatever happens."""
        from dlcloud.cli.lifecycle import acquire_for_command, confirm_spending, destroy_at_end
        from dlcloud.launch.storage import prepare_access
        from dlcloud.report.plan import plan_report

        click.echo(render(plan_report(plan, detached=self.detach), Format.TABLE) + "\n", err=True)
        confirm_spending(plan, yes=yes)
        context = self.context
        with acquire_for_command(context, self.file, name=self.name) as acquired:
            launcher = context.launcher(acquired.cluster)
            if self.detach:
                from dlcloud.cli.detach import detach, print_detached

                detach(context, launcher, acquired, self.file, plan=plan, environment=self.environment)
                print_detached(context, acquired.cluster, self.output)
                return
            if context.clusters.last_hand_over(acquired.cluster.cluster_id) is not None:
                from dlcloud.cli.detach import refuse_detached

                refuse_detached(context, launcher)
            keep = plan.keep or acquired.kept
            if context.controller_instance_id:
                from dlcloud.cli.detach import control_here

                at_end = control_here(context, launcher, keep=keep)
            else:
                at_end = destroy_at_end(launcher, acquired, keep=keep)
            with at_end:
                is_successor = self._term_of(acquired.cluster) > 0
                if not is_successor:
                    prepare_access(launcher, self.file.recipe)
                members = launcher.reconcile() if is_successor else launcher.launch(plan).members
                if context.controller_instance_id:
                    context.paths.in_charge(launcher.cluster_id).touch()
                self._run_workload(launcher, plan, members)
        if self._is_elastic:
            from dlcloud.cli.training import print_training

            # Only now is the bill of every instance known.
            print_training(context, acquired.cluster.name, self.output, command="up")

    def _check_deadline(self) -> None:
        """Refuse a deadline that a training that begins now cannot meet."""
        from dlcloud.recipe.deadline import check_deadline

        recipe, file = self.file.recipe, self.file
        check_deadline(
            recipe.deadline,
            max_hours=recipe.budget.max_hours,
            now=self.context.clock.now(),
            text=file.written or file.text,
            file=file.path,
        )

    def _check_program(self) -> None:
        """Refuse a program at fault, or none for the way in, before anything is asked of a cloud."""
        from dlcloud.cli.script_check import warn_of_script

        warn_of_script(self.file.recipe.workload, self._folder, self.context.emit)
        refuse_missing_program(self.file.recipe.network)
        if self.detach:
            from dlcloud.detached.rules import check_detachable

            check_detachable(self.file.recipe)
        if self.file.recipe.data:
            from dlcloud.launch.storage import check_data

            check_data(self.file.recipe, self._folder)
        if self._is_elastic:
            from dlcloud.elastic.program import program_of as training_of

            training_of(self.file.recipe, self._folder, run="")
        else:
            _ = self.program

    def _run_workload(self, launcher: "Launcher", plan: "Plan", members: list[Member]) -> None:
        recipe, runs = self.file.recipe, self.context.runs
        if self._is_elastic:
            from dlcloud.elastic.rescue import bring_home
            from dlcloud.elastic.run import Control, train

            control = Control(rehearsal=self._rehearsal())
            if self.context.controller_instance_id:
                from dlcloud.cli.detach import own_control

                term = self._term_of(launcher.cluster)
                own = own_control(self.context, launcher, self.file, plan, term=term)
                # What was rehearsed before is not rehearsed again by the next controller.
                control = replace(own, rehearsal=None if term else control.rehearsal)
            try:
                train(
                    launcher,
                    recipe,
                    members,
                    recipe_folder=self._folder,
                    plan=plan,
                    environment=self.environment,
                    control=control,
                )
            except KeyboardInterrupt:
                # On an instance it comes from the command that fetches the results.
                if not self.context.controller_instance_id:
                    bring_home(launcher, recipe)
                raise
            return
        from dlcloud.cli.console import MOST_LINES
        from dlcloud.runs.nodes import run_workload
        from dlcloud.runs.run import Runner

        runner = Runner(
            managed=launcher,
            recipe=recipe,
            program=self.program,
            image_id=plan.image.image_id,
            fresh=self.fresh,
            environment=self.environment,
            recipe_folder=self._folder,
            is_live=len(members) <= MOST_LINES,
        )
        earlier = {run.run_id for run in runs.of_cluster(launcher.cluster_id) if run.ended_at}
        try:
            run_workload(runner, members)
        except DlcloudError as error:
            error.result_shown = self._print_results(launcher, earlier)
            raise
        self._print_results(launcher, earlier)

    def _rehearsal(self) -> "Rehearsal | None":
        recipe = self.file.recipe
        if not recipe.rehearsal:
            return None
        from dlcloud.elastic.rehearsal import Rehearsal

        return Rehearsal(
            incidents=recipe.rehearsal,
            types=recipe.instances.types,
            faults=self.context.local_endpoint().control,
            emit=self.context.emit,
        )

    def _print_results(self, launcher: "Launcher", earlier: set[str]) -> bool:
        """Print what was measured by this `up`; True if there was anything."""
        from dlcloud.report.cost import View, cost_report
        from dlcloud.report.rows import rows_of_runs

        context = self.context
        runs = context.runs.of_cluster(launcher.cluster_id)
        run_ids = [run.run_id for run in runs if run.run_id not in earlier]
        rows = rows_of_runs(context.measurements, run_ids, context.clock.now())
        if rows:
            report = cost_report(rows, View(details=True), command="up")
            extra = {"cluster": launcher.cluster.name}
            click.echo(render(replace(report, extra=extra), Format(self.output)))
        return bool(rows)


def _read_file(name: str, overrides: "Overrides", *, keep: bool) -> "RecipeFile":
    """Read, change and check a recipe; with `keep` its instances are kept, whatever it says."""
    from dlcloud.cli.profiles import read_recipe_file

    file = read_recipe_file(name)
    recipe = file.recipe
    if str(overrides):
        recipe, text = overrides.apply(recipe)
        file = replace(file, text=text)
    if keep:
        recipe = recipe.model_copy(update={"keep": recipe.keep.model_copy(update={"instances": True})})
    return replace(file, recipe=recipe)
