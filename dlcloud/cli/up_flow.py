"""The walk of `dlcloud up`: recipe, preflight, plan, launch, run, report, down."""

import ipaddress
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click

from dlcloud.bench.program import Program, program_of
from dlcloud.bench.run import Runner
from dlcloud.cli.context import Context
from dlcloud.cli.detach_flow import Detacher, look_after, print_detached
from dlcloud.cli.lifecycle import (
    acquire_for_command,
    brought_up,
    handed_over,
    others_ended_after,
    taken_down_after,
)
from dlcloud.cli.train_flow import Training
from dlcloud.cli.training import print_training
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import BudgetError, DlcloudError, RecipeError
from dlcloud.core.events import stage
from dlcloud.core.handover import refuse_detached
from dlcloud.core.plan import NO_CAPACITY, Plan, make_plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.recipe import read_recipe
from dlcloud.elastic.program import program_of as training_of
from dlcloud.launch.lock import RecipeFile, earlier_cluster
from dlcloud.launch.members import existing_capacity, list_members
from dlcloud.launch.preflight import observe
from dlcloud.report.cost import View, cost_report
from dlcloud.report.plan import plan_report
from dlcloud.report.rows import rows_of_runs
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import recipe_text


@dataclass
class Up:
    """One `dlcloud up`.

    Args:
        context: The collaborators.
        recipe: A file, or the name of a bundled recipe.
        keep: Keep the instances, whatever the recipe says.
        name: The cluster's name; empty for one made of the recipe's.
        cidr: The network that may reach the instances; empty for the caller's own.
        output: How the result is written.
        fresh: Measure again what an interrupted run had measured.
        detach: Leave the controller on the coordinator.
    """

    context: Context
    recipe: str
    keep: bool
    name: str
    cidr: str
    output: str
    fresh: bool = False
    detach: bool = False

    @cached_property
    def file(self) -> RecipeFile:
        """The recipe, read and checked."""
        text, path = recipe_text(self.recipe)
        recipe = read_recipe(text, str(path or self.recipe))
        if self.keep:
            recipe = recipe.model_copy(update={"keep": recipe.keep.model_copy(update={"instances": True})})
        return RecipeFile(recipe=recipe, text=text, path=str(path.absolute() if path else ""))

    @cached_property
    def program(self) -> Program:
        """What the recipe measures."""
        return program_of(self.file.recipe, self._folder)

    @property
    def _folder(self) -> Path:
        return Path(self.file.path).parent

    @cached_property
    def cloud(self) -> Cloud:
        """Where the recipe runs it."""
        return self.context.cloud(self.file.recipe.cloud, self.file.recipe.region)

    def plan(self) -> Plan:
        """Check everything that can be checked before anything is created, and decide."""
        network = network_of(self.cidr)
        self._refuse_faults()
        self._refuse_handed_over()
        with stage(
            self.context.emit, self.context.clock, "looking at credentials, types, image, prices, network"
        ):
            return make_up_plan(self.context, self.file, name=self.name, network=network)

    def _refuse_faults(self) -> None:
        """Refuse what is wrong with the program before anything is asked of a cloud."""
        if self.detach:
            refuse_detached(self.file.recipe)
        if self.file.recipe.workload.elastic is not None:
            training_of(self.file.recipe, self._folder, run="")
        else:
            _ = self.program

    def detached_already(self) -> bool:
        """Look after what an earlier `up --detach` of this recipe has handed over; tell whether one has."""
        cluster = earlier_cluster(self.file, name=self.name, clusters=self.context.clusters)
        if not self.detach or cluster is None:
            return False
        if self.context.clusters.controller(cluster.cluster_id) is None:
            return False
        look_after(self.context, cluster, self.output)
        return True

    def _refuse_handed_over(self) -> None:
        cluster = earlier_cluster(self.file, name=self.name, clusters=self.context.clusters)
        controller = None if cluster is None else self.context.clusters.controller(cluster.cluster_id)
        if cluster is not None and controller is not None:
            raise handed_over(cluster, controller)

    def show(self, plan: Plan) -> None:
        """Print the plan as the result."""
        click.echo(render(plan_report(plan, detached=self.detach), Format(self.output)))

    def go(self, plan: Plan, *, yes: bool) -> None:
        """Carry the plan out, print the result, and take down what was launched, whatever happens."""
        click.echo(render(plan_report(plan, detached=self.detach), Format.TABLE) + "\n", err=True)
        ask_to_spend(plan, yes=yes)
        claim = acquire_for_command(self.context, self.file, name=self.name)
        after = others_ended_after if self.context.controller else taken_down_after
        try:
            detacher = Detacher(
                context=self.context, claim=claim, file=self.file, cloud=self.cloud, plan=plan
            )
            if self.detach:
                detacher.go()
                print_detached(self.context, claim.cluster, self.output)
                return
            detacher.refuse_detached()
            with after(self.context, claim, keep=plan.keep or claim.kept):
                self._run(claim.cluster, plan)
        finally:
            claim.lock.release()
        if self.file.recipe.workload.elastic is not None:
            # Only now is the bill of every instance known.
            print_training(self.context, claim.cluster.name, self.output, command="up")

    def _run(self, cluster: Cluster, plan: Plan) -> None:
        context = self.context
        dial = context.dialer(cluster)
        reached = brought_up(
            context, cluster, plan, cloud=self.cloud, dial=dial, clock=context.clock, emit=context.emit
        )
        if context.controller:
            context.paths.in_charge(cluster.cluster_id).touch()
        if self.file.recipe.workload.elastic is not None:
            Training(
                context=context,
                cluster=cluster,
                recipe=self.file.recipe,
                recipe_folder=self._folder,
                plan=plan,
                cloud=self.cloud,
                dial=dial,
            ).go(reached.members)
            return
        runner = Runner(
            cluster=cluster,
            recipe=self.file.recipe,
            program=self.program,
            image_id=plan.image.image_id,
            cloud=self.cloud,
            dial=dial,
            runs=context.runs,
            paths=context.paths,
            clock=context.clock,
            emit=context.emit,
            fresh=self.fresh,
        )
        before = {run.run_id for run in context.runs.of_cluster(cluster.cluster_id) if run.ended_at}
        try:
            runner.run_all(reached.members)
        except DlcloudError as error:
            error.result_shown = self._print_results(cluster, before)
            raise
        self._print_results(cluster, before)

    def _print_results(self, cluster: Cluster, before: set[str]) -> bool:
        """Print what was measured by this `up`; tell whether there was anything."""
        runs = self.context.runs.of_cluster(cluster.cluster_id)
        lines = rows_of_runs(
            self.context.measurements,
            [run.run_id for run in runs if run.run_id not in before],
            self.context.clock.now(),
        )
        if lines:
            report = replace(
                cost_report(lines, View(details=True), command="up"), extra={"cluster": cluster.name}
            )
            click.echo(render(report, Format(self.output)))
        return bool(lines)


def make_up_plan(context: Context, file: RecipeFile, *, name: str, network: str) -> Plan:
    """Look at everything that can be looked at before anything is created, and decide.

    Args:
        context: The collaborators.
        file: The recipe.
        name: The cluster's name; empty for one made of the recipe's.
        network: The network that may reach the instances; empty for the caller's own.

    Raises:
        CloudError, BudgetError: It cannot be had.
    """
    cloud = context.cloud(file.recipe.cloud, file.recipe.region)
    account = context.account(file.recipe.cloud, file.recipe.region)
    clusters = context.clusters
    earlier = earlier_cluster(file, name=name, clusters=clusters)
    size = clusters.size(earlier.cluster_id) if earlier else None
    recipe = file.recipe if size is None else file.recipe.resized(size)
    observed = observe(recipe, cloud=cloud, account=account, cidr=network)
    there = NO_CAPACITY
    if earlier is not None:
        members = list_members(earlier, cloud=cloud, clusters=clusters)
        there = existing_capacity(earlier, recipe, members, prices=observed.prices, clusters=clusters)
    return make_plan(recipe, observed, there)


def network_of(cidr: str) -> str:
    """Return the network that `--cidr` names, spelt as EC2 does; empty for none.

    Raises:
        RecipeError: It names none.
    """
    try:
        return str(ipaddress.ip_network(cidr)) if cidr else ""
    except ValueError as error:
        raise RecipeError(f"--cidr: {error}", "for example 203.0.113.7/32") from error


def ask_to_spend(plan: Plan, *, yes: bool) -> None:
    """Ask before money is spent; a script says --yes.

    Raises:
        BudgetError: Nobody can be asked.
    """
    if yes or plan.rehearsal:
        return
    if not sys.stdin.isatty():
        raise BudgetError("this spends money, and nobody can be asked", "say --yes")
    click.confirm("Go on?", abort=True, err=True)
