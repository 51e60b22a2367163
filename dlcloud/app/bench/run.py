"""`dlcloud bench`: the same work on several instance types in parallel, then one table of costs."""

import secrets
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlcloud.analysis.bench import (
    BenchmarkMatrix,
    TypeResult,
    count_cases,
    done_before,
    fault_of,
    fits,
    matrix_s,
)
from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.resume import RESUME_WINDOW
from dlcloud.analysis.user_job import UserJob
from dlcloud.app.account.caches import trim_caches
from dlcloud.app.bench.one_type import Shared, TypeRun, label_events, recipe_file
from dlcloud.app.budget import hold_month
from dlcloud.app.choice import choose_types, regions_of
from dlcloud.app.clusters.workload import environment_of
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import destroy_unfinished, launcher_for, plan_everywhere
from dlcloud.app.packages import pin_packages
from dlcloud.app.recipe_files import profile_defaults, read_recipe_file
from dlcloud.app.results.predict import choose_measured, predict_bench, with_predictions
from dlcloud.app.results.rows import rows_of_runs
from dlcloud.app.terminal.screen import agrees, confirm, say
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.launch.acquire import resolve_cluster
from dlcloud.model.cluster import DEFAULT_REGION, Cluster
from dlcloud.model.errors import (
    BudgetError,
    CloudError,
    CredentialsError,
    DlcloudError,
    MissingCredentialsError,
    QuotaError,
    RecipeError,
)
from dlcloud.model.events import PREFLIGHT, Info, stage
from dlcloud.model.instance import Market
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.money import money
from dlcloud.planning.fit import LeftOut
from dlcloud.planning.plan import Plan
from dlcloud.prediction.measured_types import Reference
from dlcloud.prediction.offers import PredictedJob, candidates_of
from dlcloud.prediction.racing import MOST_SAMPLES
from dlcloud.recipe.instances import Requirements
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import RecipeFile
from dlcloud.report.answer import Question, answers_of
from dlcloud.report.bench_tables import (
    TypePlan,
    describe_shorter,
    left_out_records,
    left_out_sections,
    plan_report,
    race_record,
    race_section,
    shared_needs,
)
from dlcloud.report.cost_tables import PLAIN, View, cost_report
from dlcloud.report.table import Format, Report, render
from dlcloud.runs.matrix import matrix_of_benchmarks, matrix_of_recipe, repeat_matrix
from dlcloud.runs.program import RunProgram, program_of
from dlcloud.runs.race import Race
from dlcloud.runs.stoppable import ExclusiveSlot, SharedQuota, run_parallel
from dlcloud.system.parallel import fan_out

NO_NEEDS: Mapping[str, Any] = MappingProxyType({})


def run(
    context: Context,
    *,
    types: Sequence[str] = (),
    needs: Mapping[str, Any] = NO_NEEDS,
    benchmarks: Sequence[str] = (),
    recipe: str = "",
    nodes: Sequence[int] = (),
    cloud: str | None = None,
    region: str | None = None,
    market: str | None = None,
    max_hours: str | None = None,
    max_usd: str | None = None,
    repeats: int | None = None,
    view: View = PLAIN,
    tiny: bool = False,
    predict: bool = False,
    reference: Reference | None = None,
    race: bool = False,
    fresh: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    cidrs: tuple[str, ...] = (),
    output: str,
) -> None:
    """Run the benchmarks that fit on every type in parallel, and print throughput and cost side by side.

    Args:
        context: The collaborators.
        types: Instance types; by default those of the recipe.
        needs: What the types must have, by keys of a recipe; each type that matches is measured.
        benchmarks: Names of bundled benchmarks; by default all.
        recipe: A recipe whose workload is run instead.
        nodes: The numbers of instances on which the recipe's job is measured.
        cloud: `aws` or `local`; this and the next four replace keys of the recipe.
        region: The Region.
        market: `on-demand`, `spot` or `spot-then-on-demand`.
        max_hours: The time after which each instance terminates itself.
        max_usd: The most that each type may cost.
        repeats: The samples of each setting; of a race the most.
        view: What of the results is shown.
        tiny: Use the tiny form of each benchmark.
        predict: Measure at most three types, and predict the others.
        reference: What the user says of the job, for the prediction.
        race: End each type as soon as it cannot be the cheapest.
        fresh: Measure again what an interrupted bench had measured.
        dry_run: Show the plan; create nothing.
        yes: Do not ask before money is spent.
        cidrs: The networks that may reach the instances; by default the caller's own address.
        output: The format.
    """
    # None leaves a key of the recipe as it is.
    keys = {
        "cloud": cloud,
        "region": region,
        "instances": {"market": market, "max_usd_per_hour": needs.get("max_usd_per_hour")},
        "budget": {"max_hours": max_hours, "max_usd": max_usd},
    }
    types, choice = _choose(context, Overrides(types=tuple(types), needs=needs), recipe, keys)

    def pin(file: RecipeFile) -> RecipeFile:
        return pin_packages(file, paths=context.paths, emit=context.emit, types=types, cloud=cloud or "")

    def bench_of(names: Sequence[str], *, predicts: bool, races: bool) -> Bench:
        matrix, folder = read_matrix(names, benchmarks, recipe, keys, tiny=tiny, nodes=nodes, pin=pin)
        if races:
            check_race(matrix)
            matrix = repeat_matrix(matrix, repeats or MOST_SAMPLES)
        elif repeats is not None:
            matrix = repeat_matrix(matrix, repeats)
        is_rehearsal = matrix.base.cloud == "local"
        return Bench(
            context=context,
            matrix=matrix,
            folder=folder,
            cidrs=cidrs,
            output=output,
            fresh=fresh or races,
            view=view,
            choice=choice,
            predict=predicts,
            reference=reference,
            again=command_again(
                benchmarks, recipe, nodes, region=region, market=market, is_rehearsal=is_rehearsal
            ),
            is_race=races,
            most_samples=repeats if races else None,
            is_tiny=tiny,
            shorter=describe_tiny_bench(matrix, benchmarks, recipe, keys, nodes=nodes),
        )

    def carry_out(bench: Bench) -> None:
        if dry_run:
            context.change_nothing()
        plans = bench.plan()
        if dry_run:
            bench.show(plans)
            return
        bench.run(plans, yes=yes)
        if bench.is_race or output != "table" or yes:
            return
        again = offer_again(bench.rows, bench.matrix, view)
        if again is not None:
            bench = replace(bench, matrix=again, rows=())
            bench.run(bench.plan(), yes=True)

    is_open_race = race and (predict or not (types or recipe))
    chosen = types
    if predict or is_open_race:
        if recipe and not types:
            message = "--predict with a recipe needs the types to choose from"
            raise RecipeError(message, "name them with --type")
        is_local = cloud == "local"
        chosen = choose_measured(context, types, region=region, is_local=is_local, reference=reference)
    if not is_open_race:
        carry_out(bench_of(chosen, predicts=predict, races=race))
        return

    # A race among those that the predictions from a few measured types leave as candidates.
    measured = bench_of(chosen, predicts=True, races=False)
    check_race(measured.matrix)
    plans = measured.plan()
    if dry_run:
        measured.show(plans)
        return
    measured.run(plans, yes=yes)
    names = raced_types(measured.predictions, Market.ON_DEMAND)
    context.emit(Info(message=f"racing {', '.join(names)}: by prediction each can be the cheapest"))
    carry_out(bench_of(names, predicts=False, races=True))


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
        choice: How the types were chosen, if requirements chose them.
        predict: Other types are predicted from the results.
        reference: What the user says of the job, for the prediction.
        again: The beginning of the command that measures the same again.
        is_race: Types that cannot be the cheapest are ended early; nothing is resumed.
        most_samples: Of a race; None for its own limit.
        shorter: The shortest useful rehearsal, with its command and its time; empty if there is none.
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
    choice: tuple[str, ...] = ()
    predict: bool = False
    reference: Reference | None = None
    again: str = ""
    is_race: bool = False
    most_samples: int | None = None
    shorter: str = ""
    is_tiny: bool = False
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
    def regions(self) -> list[str]:
        """The regions that each type may be measured in."""
        base = self.matrix.base
        return regions_of(self.context, base.cloud, base.open_regions, base.geography)

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
        _ = self.cloud, self.regions, self.context.benches
        with stage(self.context.emit, self.context.clock, PREFLIGHT):
            outcomes = fan_out(lambda name: self._plan_type(name, done), self.matrix.types)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        plans = [outcome.value for outcome in outcomes if outcome.value is not None]
        places = {one.instance_type: one.plan.region for one in plans if one.plan is not None}
        self.matrix = replace(self.matrix, places=places)
        if not any(plan.fit.benchmarks for plan in plans):
            reasons = [left_out.reason for plan in plans for left_out in plan.fit.left_out]
            raise RecipeError("nothing fits: " + "; ".join(reasons), "choose other --type or --benchmark")
        if self.is_race:
            check_quota_of_race(plans)
        return plans

    def show(self, plans: Sequence[TypePlan]) -> None:
        """Print the plan as the result."""
        report = plan_report(plans, self.matrix, shorter=self._offer, choice=self.choice)
        say(render(report, Format(self.output)))

    def run(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        """Carry the plans out, print the results, and leave nothing running, whatever happens.

        Raises:
            PartialError: A part was measured.
            CloudError: Every type was refused.
            InstanceError: The programs failed wherever they ran.
        """
        job = self.view.job if self.view else None
        self.race = race_of(plans, job, self.most_samples) if self.is_race else None
        report = plan_report(plans, self.matrix, shorter=self._offer, choice=self.choice)
        say(render(report, Format.TABLE) + "\n", err=True)
        self._confirm_spending(plans, yes=yes)
        if self.matrix.base.cloud == "local":
            trim_caches(self.context)
        shared = self._shared(self._begin(), plans)
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
            plan, *elsewhere = self._plans(name, self.matrix.count_of(waiting))
        except CredentialsError as error:  # the same for all types
            if isinstance(error, MissingCredentialsError) and self.shorter:
                error.hint = f"{self.shorter}; no account is needed"
            raise
        except CloudError as error:
            return TypePlan(instance_type=name, fit=fit, waiting=waiting, refused=error)
        return TypePlan(instance_type=name, fit=fit, waiting=waiting, plan=plan, elsewhere=tuple(elsewhere))

    def _plans(self, name: str, size: int) -> list[Plan]:
        """Return the plans of a type in all regions, the cheapest first, or in that of an unfinished cluster.

        Raises:
            CloudError: Every region refuses it.
        """
        earlier = resolve_cluster(recipe_file(self.matrix, name), name="", store=self.context.store)
        regions = self.regions if earlier is None else [earlier.region]
        files = {one: recipe_file(replace(self.matrix, places={name: one}), name) for one in regions}
        places = {one: (launcher_for(self.context, file), file.recipe) for one, file in files.items()}
        if len(places) > 1:
            return plan_everywhere(places, cidrs=self.cidrs, size=size)
        launcher, recipe = places[regions[0]]
        return [launcher.plan(recipe, cidrs=self.cidrs, size=size)]

    @property
    def _offer(self) -> str:
        """The shorter run, if this one is long."""
        return "" if self.is_tiny else self.shorter

    def _confirm_spending(self, plans: Sequence[TypePlan], *, yes: bool) -> None:
        hold_month(self.context, [(one.plan, self._cluster_of(one)) for one in plans if one.plan is not None])
        if yes or self.matrix.base.cloud == "local" or not any(plan.plan for plan in plans):
            return
        if not sys.stdin.isatty():
            raise BudgetError("this spends money, and stdin is not a terminal", "pass --yes to confirm")
        confirm("Continue?")

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

    def _shared(self, bench_id: str, plans: Sequence[TypePlan]) -> Shared:
        stop = threading.Event()
        return Shared(
            bench_id=bench_id,
            matrix=self.matrix,
            programs=self.programs,
            environment=self.environment,
            fresh=self.fresh,
            stop=stop,
            # Programs that measure on one machine would disturb each other.
            slot=ExclusiveSlot(stop, exclusive=self.matrix.base.cloud == "local" and not self.is_race),
            quota=SharedQuota(stop, {place: quota.left for place, (quota, _) in shared_needs(plans).items()}),
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
        rehearsal = self.matrix.base.cloud == "local"
        report = results_report(
            self.rows, results, left_out, rehearsal=rehearsal, view=self.view, commands=commands
        )
        if self.predict:
            base = self.matrix.base
            self.predictions = predict_bench(context, self.rows, base, Market.ON_DEMAND, self.reference)
            report = with_predictions(report, self.predictions, base, Format(self.output))
        if self.race is not None:
            report = with_race(report, self.race, rehearsal=rehearsal)
        say(render(report, Format(self.output)))
        return True


def _choose(
    context: Context, options: Overrides, recipe: str, keys: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the types that the options name or require, else a recipe that requires some; and the choice.

    No types are returned where the recipe names them and no option does.
    """
    requirements: Requirements
    if recipe:
        base = read_recipe_file(recipe).recipe
        changed = options.apply(base)[0] if options.types or options.needs else base
        requirements, rounds = changed.instances, changed.instances.rounds
        usual: dict[str, Any] = {"cloud": base.cloud, "region": base.open_regions}
    else:
        requirements, rounds, usual = options.requirements(), (Market.ON_DEMAND,), profile_defaults({})
    if not requirements.describe():
        return options.types, ()
    market = keys["instances"]["market"]
    if market is not None:
        rounds = (Market.ON_DEMAND,) if market == Market.ON_DEMAND else (Market.SPOT,)
    cloud = keys["cloud"] or usual.get("cloud", "aws")
    names = keys["region"] or usual.get("region", DEFAULT_REGION)
    names = names.replace(",", " ").split() if isinstance(names, str) else names
    regions = regions_of(context, cloud, names, keys.get("geography"))
    choice = choose_types(context, requirements, cloud=cloud, regions=regions, markets=rounds)
    return choice.names, choice.notes


def command_again(
    benchmarks: Sequence[str],
    recipe: str,
    nodes: Sequence[int] = (),
    *,
    region: str | None,
    market: str | None,
    is_rehearsal: bool,
) -> str:
    """Return the command that measures the same again, except its types and the number of samples.

    What was rehearsed is measured on AWS, also where the recipe says `cloud: local`.
    """
    words = ["dlcloud", "bench", *([recipe] if recipe else [])]
    words += [word for name in benchmarks for word in ("-b", name)]
    words += ["--nodes", ",".join(map(str, nodes))] if nodes else []
    words += ["--cloud", "aws"] if is_rehearsal else []
    words += ["--region", region] if region else []
    return shlex.join([*words, *(["--market", market] if market else [])])


def describe_tiny_bench(
    matrix: BenchmarkMatrix,
    benchmarks: Sequence[str],
    recipe: str,
    keys: dict[str, Any],
    *,
    nodes: Sequence[int] = (),
) -> str:
    """Return the command of the tiny rehearsal of a bench, with its time; empty if there is no tiny form."""
    try:
        tiny, _ = read_matrix(matrix.types, benchmarks, recipe, keys, tiny=True, nodes=nodes)
        full, _ = read_matrix(matrix.types, benchmarks, recipe, keys, tiny=False, nodes=nodes)
    except RecipeError:
        return ""
    words = ["dlcloud", "bench", *([recipe] if recipe else [])]
    words += [word for name in matrix.types for word in ("-t", name)]
    words += [word for name in benchmarks for word in ("-b", name)]
    words += ["--nodes", ",".join(map(str, nodes))] if nodes else []
    return describe_shorter(
        shlex.join([*words, "--cloud", "local", "--tiny"]), matrix_s(tiny), matrix_s(full)
    )


def read_matrix(
    types: Sequence[str],
    benchmarks: Sequence[str],
    recipe: str,
    keys: dict[str, Any],
    *,
    tiny: bool,
    nodes: Sequence[int] = (),
    pin: Callable[[RecipeFile], RecipeFile] | None = None,
) -> tuple[BenchmarkMatrix, Path]:
    """Return the matrix, and the folder that the files of a recipe's workload are relative to.

    `pin` pins the open versions of the recipe's packages.
    """
    if recipe and benchmarks:
        raise RecipeError(f"{recipe} brings its own workload", "leave --benchmark out")
    if nodes and not recipe:
        raise RecipeError("--nodes needs the recipe of a job", "dlcloud bench torchrun-ddp --nodes 1,2")
    if not recipe and not types:
        raise RecipeError("no instance type given", "dlcloud bench --type c7i.xlarge --type g4dn.xlarge")
    keys = {key: value for key, value in keys.items() if value is not None}
    if not recipe:
        return matrix_of_benchmarks(types, benchmarks, profile_defaults(keys), tiny=tiny), Path()
    file = read_recipe_file(recipe) if pin is None else pin(read_recipe_file(recipe))
    matrix = matrix_of_recipe(types, file.recipe, keys, tiny=tiny, nodes=nodes)
    return replace(matrix, recipe_path=file.path), Path(file.path).parent if file.path else Path()


def results_report(
    rows: Sequence[ResultRow],
    results: Sequence[TypeResult],
    left_out: Sequence[tuple[str, LeftOut]],
    *,
    rehearsal: bool,
    view: View | None,
    commands: Mapping[str, str],
) -> Report:
    """Return the cost report of a bench with what was left out, refused or failed; the answer is last."""
    report = cost_report(
        rows, view or PLAIN, command="bench", empty="nothing was measured", commands=commands
    )
    answer = [section for section in report.sections if section.leads]
    tables = [section for section in report.sections if not section.leads]
    extra = {
        **report.extra,
        "left_out": left_out_records(left_out),
        "not_had": {result.instance_type: result.refused.message for result in results if result.refused},
        "failed": {result.instance_type: dict(result.failed) for result in results if result.failed},
    }
    last = left_out_sections(left_out, rehearsal=rehearsal)
    return replace(report, sections=[*tables, *last, *answer], extra=extra)


def offer_again(rows: Sequence[ResultRow], matrix: BenchmarkMatrix, view: View) -> BenchmarkMatrix | None:
    """Ask on a terminal whether to measure again where that settles a tie; None if not."""
    answers = answers_of(rows, Question(market=view.market))
    ties = [tie for answer in answers for tie in answer.settlings.values() if tie.samples is not None]
    if not ties or not sys.stdin.isatty():
        return None
    names = tuple(dict.fromkeys(name for tie in ties for name in tie.types))
    amounts = [tie.usd for tie in ties]
    cost = "" if None in amounts else f", about {money(max(usd for usd in amounts if usd is not None))} USD"
    samples = max(tie.samples or 0 for tie in ties)
    question = f"Measure {', '.join(names)} again now ({samples} samples of each setting{cost})?"
    if not agrees(question):
        return None
    return repeat_matrix(matrix, samples, types=names)


FEWEST_TYPES = 2


def check_quota_of_race(plans: Sequence[TypePlan]) -> None:
    """Refuse a race whose types do not fit into the account's vCPU quotas together.

    Raises:
        QuotaError: They would have to wait for each other.
    """
    for (region, _), (quota, vcpus) in shared_needs(plans).items():
        if vcpus > quota.left:
            raise QuotaError(
                f"--race launches all types together, which takes {vcpus} vCPUs; {quota.describe()}",
                f"leave types out, or {quota.increase(vcpus, region)}",
            )


def check_race(matrix: BenchmarkMatrix) -> None:
    """Check that a matrix can be raced: one case of one job.

    Raises:
        RecipeError: It cannot.
    """
    hint = "a recipe with one case in workload.parameters, or one -b NAME with one case"
    if len(matrix.jobs) > 1:
        names = ", ".join(job.name for job in matrix.jobs)
        raise RecipeError(f"--race compares types by one job, not by {len(matrix.jobs)}: {names}", hint)
    job, cases = matrix.jobs[0], count_cases(matrix.jobs[0])
    if cases > 1 and job.benchmark is not None:
        message = f"--race compares types by one case, and {job.name} has {cases}"
        raise RecipeError(message, f"{hint}; cases come from {', '.join(job.benchmark.selecting)}")


def race_of(plans: Sequence[TypePlan], job: UserJob | None, most_samples: int | None) -> Race:
    """Return the race of the types that can be launched.

    Raises:
        RecipeError: Fewer than two can, or the price of one is not known.
    """
    hourly = {}
    for planned in plans:
        if planned.plan is None:
            continue
        price = planned.plan.pools[0].price
        if price is None:
            message = f"--race needs the price of {planned.instance_type}, which is not known"
            raise RecipeError(message, "leave the type out")
        hourly[planned.instance_type] = float(price.hourly_usd) * planned.plan.max_count
    if len(hourly) < FEWEST_TYPES:
        named = ", ".join(hourly) or "none"
        raise RecipeError(
            f"--race needs two types that can run the job; of those given there is {named}",
            "dlcloud bench FILE --race --type c7i.xlarge --type c7a.xlarge",
        )
    return Race(hourly_usd=hourly, job=job, most_samples=most_samples or MOST_SAMPLES)


def with_race(report: Report, race: Race, *, rehearsal: bool) -> Report:
    """Return the report of a bench with the race instead of the answer, which looks only once."""
    result = race.result()
    tables = [section for section in report.sections if not section.leads]
    sections = [*tables, race_section(result, rehearsal=rehearsal)]
    return replace(report, sections=sections, extra={**report.extra, "race": race_record(result)})


def raced_types(jobs: Sequence[PredictedJob], market: Market) -> tuple[str, ...]:
    """Return the types that the predictions leave as candidates.

    Raises:
        RecipeError: Nothing was predicted.
    """
    names = candidates_of(jobs, market)
    if len(names) < FEWEST_TYPES:
        reasons = "; ".join(dict.fromkeys(job.refused for job in jobs if job.refused))
        message = f"the predictions leave nothing to race: {reasons or 'one type is cheaper than all others'}"
        raise RecipeError(message, "name the candidates with --type")
    return names
