"""The walk of `dlcloud bench`: the same work on several instance types at once, then one table."""

import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click

from dlcloud.bench.parallel import ExclusiveSlot, run_parallel
from dlcloud.bench.program import Program, program_of
from dlcloud.cli.bench_type import Shared, TypeRun, label_events, recipe_file
from dlcloud.cli.context import Context
from dlcloud.cli.lifecycle import destroy_unfinished, plan_cluster
from dlcloud.core.bench import RESUME_WINDOW, BenchmarkMatrix, TypeResult, done_before, fault_of, fits
from dlcloud.core.errors import BudgetError, CloudError, DlcloudError, RecipeError
from dlcloud.core.events import Notice, stage
from dlcloud.core.protocols import Cloud
from dlcloud.report.bench import TypePlan, left_out_records, left_out_sections, plan_report
from dlcloud.report.cost import cost_report
from dlcloud.report.rows import rows_of_runs
from dlcloud.report.table import Format, render
from dlcloud.system.parallel import fan_out


@dataclass(kw_only=True)
class Bench:
    """One `dlcloud bench`.

    Args:
        context: The collaborators.
        order: What is asked for.
        folder: What the files of a recipe's workload are relative to.
        network: The network that may reach the instances; empty for the caller's own.
        output: How the result is written.
        fresh: Measure again what an interrupted bench had measured.
    """

    context: Context
    order: BenchmarkMatrix
    folder: Path
    network: str
    output: str
    fresh: bool = False

    @cached_property
    def programs(self) -> dict[str, Program]:
        """What each work runs."""
        recipes = {work.name: self.order.of_work(self.order.types[0], work) for work in self.order.works}
        return {name: program_of(recipe, self.folder) for name, recipe in recipes.items()}

    @cached_property
    def cloud(self) -> Cloud:
        """Where it runs."""
        return self.context.cloud(self.order.base.cloud, self.order.base.region)

    @cached_property
    def earlier(self) -> str | None:
        """The bench that this one takes up again: of the same order, and cut off or not complete."""
        if self.fresh:
            return None
        since = self.context.clock.now() - RESUME_WINDOW
        return self.context.benches.incomplete(self.order.digest, since)

    def plan(self) -> list[TypePlan]:
        """Check everything that can be checked before anything is created, and decide for each type.

        Raises:
            RecipeError: Nothing fits any of the types.
        """
        _ = self.programs  # their faults, too, come before anything is asked of a cloud
        done = done_before(self.context.benches.runs(self.earlier)) if self.earlier else set()
        _ = self.cloud, self.context.benches
        about = "looking at credentials, types, image, prices, network"
        with stage(self.context.emit, self.context.clock, about):
            outcomes = fan_out(lambda name: self._plan_type(name, done), self.order.types)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        plans = [outcome.value for outcome in outcomes if outcome.value is not None]
        if not any(each.fit.benchmarks for each in plans):
            reasons = [left.reason for each in plans for left in each.fit.left_out]
            raise RecipeError("nothing fits: " + "; ".join(reasons), "choose other --instance or --benchmark")
        return plans

    def show(self, plans: Sequence[TypePlan]) -> None:
        """Print the plan as the result."""
        click.echo(render(plan_report(plans, name=self.order.base.name), Format(self.output)))

    def go(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        """Carry the plans out, print what was measured, and leave nothing running, whatever happens.

        Raises:
            PartialError: Something was measured, something was not.
            CloudError: No instance could be had.
            InstanceError: The programs failed wherever they ran.
        """
        click.echo(render(plan_report(plans, name=self.order.base.name), Format.TABLE) + "\n", err=True)
        self._ask_to_spend(plans, yes=yes)
        bench_id = self._begin()
        for each in plans:
            self.context.benches.put_left_out(bench_id, each.instance_type, each.fit.left_out)
        shared = self._shared(bench_id)
        try:
            outcomes = run_parallel(
                lambda each: self._measure(each, shared), plans, stop=shared.stop, on_stop=shared.hang_up
            )
        except KeyboardInterrupt:
            self.context.emit(
                Notice(message="what was measured is stored: the same command goes on from there")
            )
            raise
        fault = fault_of(outcomes)
        if fault is None:
            self.context.benches.end(bench_id, self.context.clock.now())
        shown = self._print_results(bench_id, outcomes, complete=fault is None)
        if fault is not None:
            fault.result_shown = shown
            raise fault

    def _plan_type(self, name: str, done: set[tuple[str, str]]) -> TypePlan:
        hardware = self.cloud.hardware(name)
        fit = fits(self.order.works, hardware)
        waiting = tuple(work for work in fit.benchmarks if (name, work) not in done)
        if not waiting:
            return TypePlan(instance_type=name, fit=fit, waiting=())
        try:
            plan = plan_cluster(self.context, recipe_file(self.order, name), name="", cidr=self.network)
        except CloudError as error:
            return TypePlan(instance_type=name, fit=fit, waiting=waiting, refused=error)
        return TypePlan(instance_type=name, fit=fit, waiting=waiting, plan=plan)

    def _ask_to_spend(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        if yes or self.order.base.cloud == "local" or not any(each.plan for each in plans):
            return
        if not sys.stdin.isatty():
            raise BudgetError("this spends money, and stdin is not a terminal", "pass --yes to confirm")
        click.confirm("Go on?", abort=True, err=True)

    def _begin(self) -> str:
        if self.earlier is not None:
            message = "going on with an earlier bench: what it measured is not repeated (--fresh repeats it)"
            self.context.emit(Notice(message=message))
            return self.earlier
        bench_id = secrets.token_hex(4)
        self.context.benches.begin(bench_id, self.order.digest, self.context.clock.now())
        return bench_id

    def _shared(self, bench_id: str) -> Shared:
        stop = threading.Event()
        return Shared(
            bench_id=bench_id,
            order=self.order,
            programs=self.programs,
            cloud=self.cloud,
            fresh=self.fresh,
            stop=stop,
            # On this machine they would take each other's time.
            turns=ExclusiveSlot(stop, exclusive=self.order.base.cloud == "local"),
        )

    def _measure(self, type_plan: TypePlan, shared: Shared) -> TypeResult:
        """Do all that is to be done on one type, and terminate its instance."""
        name = type_plan.instance_type
        done = [work for work in type_plan.fit.benchmarks if work not in type_plan.waiting]
        context = self.context.with_emit(label_events(self.context.emit, name))
        if type_plan.plan is None:
            try:
                destroy_unfinished(context, recipe_file(self.order, name))
            except DlcloudError as error:
                return TypeResult(instance_type=name, done=tuple(done), failed={"its end": error.message})
            return TypeResult(instance_type=name, done=tuple(done), refused=type_plan.refused)
        run = TypeRun(shared=shared, context=context, planned=type_plan, plan=type_plan.plan, done=done)
        return run.outcome()

    def _print_results(self, bench_id: str, outcomes: Sequence[TypeResult], *, complete: bool) -> bool:
        """Print what was measured, by this command or before it; tell whether there was anything to print."""
        context = self.context
        runs = [run.run_id for run in context.benches.runs(bench_id)]
        lines = rows_of_runs(context.measurements, runs, context.clock.now())
        if not lines and not complete:
            return False
        left_out = context.benches.left_out(bench_id)
        report = cost_report(lines, command="bench", empty="nothing was measured")
        extra = {
            "left_out": left_out_records(left_out),
            "not_had": {each.instance_type: each.refused.message for each in outcomes if each.refused},
            "failed": {each.instance_type: dict(each.failed) for each in outcomes if each.failed},
        }
        sections = [*report.sections, *left_out_sections(left_out)]
        click.echo(render(replace(report, sections=sections, extra=extra), Format(self.output)))
        return True
