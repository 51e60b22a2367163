"""`dlcloud bench`: the same work on several instance types at once, then one table of costs."""

import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dlcloud.app.account.caches import trim_caches
from dlcloud.app.bench.bench_matrix import command_again, read_matrix
from dlcloud.app.bench.one_type import Shared, TypeRun, label_events, recipe_file
from dlcloud.app.bench.predicted import NOTHING, choose_measured, predict_bench, with_predictions
from dlcloud.app.bench.raced import check_race, race_of, raced_types, with_race
from dlcloud.app.bench.summary import offer_again, results_report
from dlcloud.app.clusters.program_environment import environment_of
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import destroy_unfinished, plan_cluster
from dlcloud.app.month_budget import hold_month
from dlcloud.app.results.predict import Description
from dlcloud.app.results.rows import rows_of_runs
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.launch.acquire import resolve_cluster
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import BudgetError, CloudError, CredentialsError, DlcloudError, RecipeError
from dlcloud.model.events import PREFLIGHT, Info, stage
from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob
from dlcloud.prediction.racing import MOST_SAMPLES
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.report.bench_tables import TypePlan, plan_report
from dlcloud.report.cost_tables import View
from dlcloud.report.table import Format, render
from dlcloud.results.bench import BenchmarkMatrix, TypeResult, done_before, fault_of, fits
from dlcloud.results.cost import ResultRow
from dlcloud.results.resume import RESUME_WINDOW
from dlcloud.runs.matrix import repeat_matrix
from dlcloud.runs.program import RunProgram, program_of
from dlcloud.runs.race import Race
from dlcloud.runs.stoppable import ExclusiveSlot, run_parallel
from dlcloud.system.parallel import fan_out


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What `dlcloud bench` was asked for."""

    types: tuple[str, ...]
    benchmarks: tuple[str, ...]
    recipe: str
    nodes: tuple[int, ...]
    keys: dict[str, Any]
    repeats: int | None
    view: View
    tiny: bool
    predict: bool
    description: Description
    race: bool
    fresh: bool
    dry_run: bool
    yes: bool
    cidrs: tuple[str, ...]
    output: str


def run(context: Context, options: BenchOptions) -> None:
    """Run the benchmarks that fit on every TYPE at once, and print throughput and cost side by side."""
    if not options.race:
        _run_bench(_bench(context, options, _types(context, options)), options)
        return
    if not options.predict and (options.types or options.recipe):
        _run_bench(_race(_bench(context, options, options.types), options), options)
        return
    options = replace(options, predict=True)
    measured = _bench(context, options, _types(context, options))
    check_race(measured.matrix)
    plans = measured.plan()
    if options.dry_run:
        measured.show(plans)
        return
    measured.run(plans, yes=options.yes)
    names = raced_types(measured.predictions, Market.ON_DEMAND)
    context.emit(Info(message=f"racing {', '.join(names)}: by prediction each can be the cheapest"))
    _run_bench(_race(_bench(context, options, names), options), options)


def _race(bench: "Bench", options: BenchOptions) -> "Bench":
    """Return a bench as a race: of samples until the cheapest is known."""
    check_race(bench.matrix)
    matrix = repeat_matrix(bench.matrix, options.repeats or MOST_SAMPLES)
    return replace(
        bench, matrix=matrix, is_race=True, predict=False, fresh=True, most_samples=options.repeats
    )


def _bench(context: Context, options: BenchOptions, types: tuple[str, ...]) -> "Bench":
    matrix, folder = read_matrix(
        types, options.benchmarks, options.recipe, options.keys, tiny=options.tiny, nodes=options.nodes
    )
    if options.repeats is not None:
        matrix = repeat_matrix(matrix, options.repeats)
    return Bench(
        context=context,
        matrix=matrix,
        folder=folder,
        cidrs=options.cidrs,
        output=options.output,
        fresh=options.fresh,
        view=options.view,
        predict=options.predict,
        description=options.description,
        again=command_again(
            options.benchmarks,
            options.recipe,
            options.keys,
            options.nodes,
            is_rehearsal=matrix.base.cloud == "local",
        ),
    )


def _run_bench(bench: "Bench", options: BenchOptions) -> None:
    if options.dry_run:
        bench.context.change_nothing()
    plans = bench.plan()
    if options.dry_run:
        bench.show(plans)
        return
    bench.run(plans, yes=options.yes)
    if bench.is_race or options.output != "table" or options.yes:
        return
    again = offer_again(bench.rows, bench.matrix, options.view)
    if again is not None:
        bench = replace(bench, matrix=again, rows=())
        bench.run(bench.plan(), yes=True)


def _types(context: Context, options: BenchOptions) -> tuple[str, ...]:
    """Return the types to measure: those that were named, or of --predict the ones that tell most."""
    if not options.predict:
        return options.types
    if options.recipe and not options.types:
        raise RecipeError(
            "--predict with --recipe needs the types to choose from", "name them with --instance"
        )
    is_local = options.keys["cloud"] == "local"
    return choose_measured(
        context,
        options.types,
        region=options.keys["region"],
        is_local=is_local,
        description=options.description,
    )


@dataclass(kw_only=True)
class Bench:
    """One `dlcloud bench`.

    Args:
        context: The collaborators.
        matrix: The types and the jobs.
        folder: The files of a recipe's workload are relative to it.
        cidrs: The networks that may reach the instances; none for the caller's own address.
        output: The format of the result.
        fresh: Measure again what an interrupted bench had measured.
        view: What of the results is shown.
        predict: Other types are predicted from the results.
        description: What the user says of the job, for the prediction.
        again: The beginning of the command that measures the same again.
        is_race: Types that cannot be the cheapest are ended early; nothing is resumed.
        most_samples: Of a race; None for its own limit.
        race: Its state, once it runs.
        rows: The results, once they are printed.
        predictions: Of `predict`, once they are printed.
    """

    context: Context
    matrix: BenchmarkMatrix
    folder: Path
    cidrs: tuple[str, ...]
    output: str
    fresh: bool = False
    view: View | None = None
    predict: bool = False
    description: Description = NOTHING
    again: str = ""
    is_race: bool = False
    most_samples: int | None = None
    race: Race | None = None
    rows: Sequence[ResultRow] = ()
    predictions: Sequence[PredictedJob] = ()

    @cached_property
    def programs(self) -> dict[str, RunProgram]:
        """The program of each job, by its name."""
        first = self.matrix.types[0]
        recipes = {job.name: self.matrix.recipe_of_job(first, job) for job in self.matrix.jobs}
        return {name: program_of(recipe, self.folder) for name, recipe in recipes.items()}

    @cached_property
    def environment(self) -> JobEnvironment:
        """The environment of the programs, with the values of a recipe's secrets."""
        return environment_of(self.context, self.matrix.base, self.folder)

    @cached_property
    def cloud(self) -> Ec2Cloud:
        return self.context.clouds.cloud(self.matrix.base.cloud, self.matrix.base.region)

    @cached_property
    def earlier_id(self) -> str | None:
        """The bench that this one resumes: of the same matrix, interrupted or incomplete."""
        if self.fresh:
            return None
        since = self.context.clock.now() - RESUME_WINDOW
        return self.context.benches.incomplete(self.matrix.digest, since)

    def plan(self) -> list[TypePlan]:
        """Check everything that can be checked before anything is created, and decide for each type.

        Raises:
            RecipeError, CredentialsError: Nothing fits any of the types; there are no credentials.
        """
        _ = self.programs, self.environment  # their faults are reported before anything is asked of a cloud
        done = done_before(self.context.benches.runs(self.earlier_id)) if self.earlier_id else set()
        if self.earlier_id is not None:
            message = "resuming an earlier bench: its results are not measured again (--fresh does)"
            self.context.emit(Info(message=message))
        _ = self.cloud, self.context.benches
        with stage(self.context.emit, self.context.clock, PREFLIGHT):
            outcomes = fan_out(lambda name: self._plan_type(name, done), self.matrix.types)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        plans = [outcome.value for outcome in outcomes if outcome.value is not None]
        if not any(plan.fit.benchmarks for plan in plans):
            reasons = [left_out.reason for plan in plans for left_out in plan.fit.left_out]
            raise RecipeError("nothing fits: " + "; ".join(reasons), "choose other --instance or --benchmark")
        return plans

    def show(self, plans: Sequence[TypePlan]) -> None:
        """Print the plan as the result."""
        say(render(plan_report(plans, self.matrix), Format(self.output)))

    def run(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        """Carry the plans out, print the results, and leave nothing running, whatever happens.

        Raises:
            PartialError: A part was measured.
            CloudError: Every type was refused.
            InstanceError: The programs failed wherever they ran.
        """
        job = self.view.job if self.view else None
        self.race = race_of(plans, job, self.most_samples) if self.is_race else None
        say(render(plan_report(plans, self.matrix), Format.TABLE) + "\n", err=True)
        self._confirm_spending(plans, yes=yes)
        if self.matrix.base.cloud == "local":
            trim_caches(self.context)
        shared = self._shared(self._begin())
        for plan in plans:
            self.context.benches.put_left_out(shared.bench_id, plan.instance_type, plan.fit.left_out)
        try:
            results = run_parallel(
                lambda plan: self._measure(plan, shared), plans, stop=shared.stop, on_stop=shared.hang_up
            )
        except KeyboardInterrupt:
            again = "races again" if self.is_race else "resumes the bench"
            self.context.emit(Info(message=f"results are stored; the same command {again}"))
            raise
        fault = fault_of(results)
        if fault is None:
            self.context.benches.end(shared.bench_id, self.context.clock.now())
        shown = self._print_results(shared.bench_id, results, complete=fault is None)
        if fault is not None:
            fault.result_shown = shown
            raise fault

    def _plan_type(self, name: str, done: set[tuple[str, str]]) -> TypePlan:

        fit = fits(self.matrix.jobs, self.cloud.types.hardware([name]).get(name))
        waiting = tuple(job for job in fit.benchmarks if (name, job) not in done)
        if not waiting:
            return TypePlan(instance_type=name, fit=fit, waiting=())
        try:
            file, size = recipe_file(self.matrix, name), self.matrix.count_of(waiting)
            plan = plan_cluster(self.context, file, name="", cidrs=self.cidrs, size=size)
        except CredentialsError as error:  # the same for all types
            error.hint = f"{error.hint}; dlcloud bench --cloud local needs none"
            raise
        except CloudError as error:
            return TypePlan(instance_type=name, fit=fit, waiting=waiting, refused=error)
        return TypePlan(instance_type=name, fit=fit, waiting=waiting, plan=plan)

    def _confirm_spending(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        hold_month(self.context, [(one.plan, self._cluster_of(one)) for one in plans if one.plan is not None])
        if yes or self.matrix.base.cloud == "local" or not any(plan.plan for plan in plans):
            return
        if not sys.stdin.isatty():
            raise BudgetError("this spends money, and stdin is not a terminal", "pass --yes to confirm")
        confirm("Go on?")

    def _cluster_of(self, plan: TypePlan) -> Cluster | None:
        """Return the cluster of a type that an earlier bench left unfinished."""
        file = recipe_file(self.matrix, plan.instance_type)
        return resolve_cluster(file, name="", store=self.context.store)

    def _begin(self) -> str:
        """Return the id of the bench: a new one, or that of the bench which this one resumes."""
        if self.earlier_id is not None:
            return self.earlier_id
        bench_id = secrets.token_hex(4)
        self.context.benches.begin(bench_id, self.matrix.digest, self.context.clock.now())
        return bench_id

    def _shared(self, bench_id: str) -> Shared:

        stop = threading.Event()
        return Shared(
            bench_id=bench_id,
            matrix=self.matrix,
            programs=self.programs,
            environment=self.environment,
            cloud=self.cloud,
            fresh=self.fresh,
            stop=stop,
            # Programs that measure on one machine would disturb each other.
            slot=ExclusiveSlot(stop, exclusive=self.matrix.base.cloud == "local" and not self.is_race),
            race=self.race,
        )

    def _measure(self, type_plan: TypePlan, shared: Shared) -> TypeResult:
        """Run all jobs of one type, and terminate its instance."""
        name = type_plan.instance_type
        done = [job for job in type_plan.fit.benchmarks if job not in type_plan.waiting]
        context = self.context.with_emit(label_events(self.context.emit, name))
        if type_plan.plan is None:
            try:
                destroy_unfinished(context, recipe_file(self.matrix, name))
            except DlcloudError as error:
                return TypeResult(instance_type=name, done=tuple(done), failed={"its end": error.message})
            return TypeResult(instance_type=name, done=tuple(done), refused=type_plan.refused)
        return TypeRun(
            shared=shared, context=context, planned=type_plan, plan=type_plan.plan, done=done
        ).outcome()

    def _print_results(self, bench_id: str, results: Sequence[TypeResult], *, complete: bool) -> bool:
        """Print the results of this bench, earlier attempts included; True if there were any."""
        context = self.context
        run_ids = [run.run_id for run in context.benches.runs(bench_id)]
        self.rows = rows_of_runs(context.measurements, run_ids, context.clock.now())
        if not self.rows and not complete:
            return False
        left_out = context.benches.left_out(bench_id)
        commands = {row.run.run_id: self.again for row in self.rows}
        report = results_report(self.rows, results, left_out, view=self.view, commands=commands)
        if self.predict:
            base = self.matrix.base
            self.predictions = predict_bench(context, self.rows, base, Market.ON_DEMAND, self.description)
            report = with_predictions(report, self.predictions, base, Format(self.output))
        if self.race is not None:
            report = with_race(report, self.race, rehearsal=self.matrix.base.cloud == "local")
        say(render(report, Format(self.output)))
        return True
