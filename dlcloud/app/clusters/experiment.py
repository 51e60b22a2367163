"""The experiment of a recipe in `dlcloud up`: what is done already, what is left, and its table."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from dlcloud.analysis.result import RunState
from dlcloud.analysis.trials import TrialState, TrialStatus
from dlcloud.app.clusters.workload import RecipeWorkload
from dlcloud.app.context import Context
from dlcloud.app.results.rows import costs_of_runs, rows_of_runs
from dlcloud.app.terminal.screen import Show, say
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.remote_jobs import log_tail
from dlcloud.launch.user_files import check_files
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import DlcloudError, RecipeError, install_hint
from dlcloud.planning.plan import Plan
from dlcloud.recipe.experiment import Experiment
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.cost_tables import View, cost_report
from dlcloud.report.experiment import ExperimentTable, experiment_report
from dlcloud.report.table import Report, Section
from dlcloud.resources.texts import template
from dlcloud.runs.experiment_records import ExperimentRecords, Identity, identity_of
from dlcloud.runs.experiment_runner import (
    Ask,
    ExperimentRunner,
    TrialQueue,
    no_more,
    refuse_failed,
    trial_recipe,
)
from dlcloud.runs.program import RunProgram, program_of
from dlcloud.runs.run import Runner

LEFT = {TrialState.WAITING, TrialState.RUNNING}
LAST_LINES = 3
"""Of the log of a trial that was given up."""

MOST_FAILURES = 50


@dataclass
class ExperimentUp:
    """The experiment of one `dlcloud up`.

    Args:
        fresh: Run all trials again.
        retry_failed: Run again those that were given up.
        html: The file of its page; empty for none.
    """

    context: Context
    workload: RecipeWorkload
    experiment: Experiment
    fresh: bool
    retry_failed: bool
    html: str = ""
    _stored: list[TrialStatus] | None = field(init=False, default=None)

    @cached_property
    def identity(self) -> Identity:
        """What its trials have in common."""
        source = self.workload.recipe.workload.files
        files = None if source is None else check_files(self.workload.folder / source)
        return identity_of(self.workload.recipe, files)

    @cached_property
    def records(self) -> ExperimentRecords:
        """What is stored of it."""
        return ExperimentRecords(
            runs=self.context.runs, experiment=self.experiment, digest=self.identity.digest
        )

    def check(self) -> None:
        """Refuse a search where Optuna is missing, and values that no command can have.

        Raises:
            RecipeError: Either.
        """
        if self.experiment.search is not None and find_spec("optuna") is None:
            raise RecipeError("experiment.search needs Optuna", install_hint("search"))
        for status in self.statuses()[:1]:
            self._program_of(trial_recipe(self.workload.recipe, status.trial))

    def statuses(self) -> list[TrialStatus]:
        """Return the status of each trial that is known, as this `up` begins with it."""
        if self._stored is None:
            self._stored = self.records.statuses()
        statuses = self._stored
        if self.fresh:
            return [] if self.experiment.search else [_anew(status) for status in statuses]
        if self.retry_failed:
            return [_anew(status) if status.state is TrialState.FAILED else status for status in statuses]
        return statuses

    @property
    def left(self) -> int:
        """How many trials are left."""
        statuses = self.statuses()
        return self.experiment.count - sum(status.state not in LEFT for status in statuses)

    def is_over(self, show: Show) -> bool:
        """Show the trials where none is left to run; True if that is so.

        Raises:
            PartialError, InstanceError: Some were given up.
        """
        if self.left:
            return False
        if not self.context.quiet:
            say("every trial has been run: --fresh runs all again", err=True)
        is_shown = self.print(show)
        try:
            refuse_failed(self.statuses())
        except DlcloudError as error:
            error.result_shown = is_shown
            raise
        return True

    def resize(self, recipe: Recipe) -> Recipe:
        """Return the recipe with no more instances than its trials can use."""
        most = max(1, -(-self.left // self.experiment.per_instance))
        return recipe if recipe.instances.maximum <= most else recipe.resized(most)

    def notes(self) -> list[str]:
        """Return what the plan states of it."""
        statuses = self.statuses()
        done = sum(status.state is TrialState.DONE for status in statuses)
        failed = sum(status.state is TrialState.FAILED for status in statuses)
        at_once = self.experiment.per_instance
        note = f"{self.left} of {self.experiment.count} trials are left, {at_once} in parallel on an instance"
        note += f"; {done} have a result already" if done else ""
        note += f"; {failed} were given up (--retry-failed runs them again)" if failed else ""
        change = self.identity.describe_change(self.context.paths.experiments, self.context.runs)
        return [note, *([change] if change else [])]

    def run(self, runner: Runner, launcher: Launcher, plan: Plan, members: Sequence[Member]) -> None:
        """Run the trials that are left; see `ExperimentRunner.run`."""
        self.begin_anew()
        self.identity.store(self.context.paths.make_folder(self.context.paths.experiments))
        self.end_lost(members)
        self._stored = None
        statuses = self.statuses()
        waiting = [status.trial for status in statuses if status.state is TrialState.WAITING]
        running = [status.trial.number for status in statuses if status.state is TrialState.RUNNING]
        ask: Ask = no_more
        on_result: Callable[[TrialStatus], None] = lambda _: None  # noqa: E731
        is_behind: Callable[[int, int, float], bool] = lambda *_: False  # noqa: E731
        if self.experiment.search is not None:
            # Optuna takes 0.5 s to import, which only a search needs.
            from dlcloud.runs.search import OptunaSearch  # noqa: PLC0415

            is_max = self.experiment.goal == "maximize"
            search = OptunaSearch(self.experiment.search, maximize=is_max, earlier=statuses)
            ask, on_result, is_behind = search.ask, search.tell, search.is_behind

        def launch_replacement(connected: Collection[str]) -> list[Member]:
            grown = launcher.grow(plan, connected=connected)
            return [member for member in grown.members if member.instance.instance_id not in connected]

        experiment_runner = ExperimentRunner(
            runner=runner,
            records=self.records,
            queue=TrialQueue(waiting, ask, running=running),
            launch_replacement=launch_replacement,
            on_result=on_result,
            is_behind=is_behind,
        )
        try:
            experiment_runner.run(members, statuses)
        finally:
            self.read_again()

    def read_again(self) -> None:
        """Take the statuses from the store again: trials have ended."""
        self._stored = None

    def begin_anew(self) -> None:
        """Take note of the trials that are to be run again."""
        if self.fresh or self.retry_failed:
            self.context.runs.leave_experiment(self.records.digest, failed_only=not self.fresh)
            self.fresh = self.retry_failed = False
            self._stored = None

    def print(self, show: Show) -> bool:
        """Show the trials; True if one has a result."""
        statuses = self.statuses()
        show(self.report(statuses))
        if self.html:
            table = experiment_table(self.context, self.workload.recipe, self.experiment, statuses)
            write_page(self.context, self.html, table, self.records)
        return any(status.state is TrialState.DONE for status in statuses)

    def report(self, statuses: Sequence[TrialStatus]) -> Report:
        """Return trials with their costs."""
        return experiment_report(
            experiment_table(self.context, self.workload.recipe, self.experiment, statuses)
        )

    def _program_of(self, recipe: Recipe) -> RunProgram:
        return program_of(recipe, self.workload.folder)

    def end_lost(self, members: Sequence[Member]) -> None:
        """Store the end of runs whose instance is none of these: their trials wait again."""
        runs, up = self.context.runs, {member.instance.instance_id for member in members}
        for run in runs.of_experiment(self.records.digest):
            if run.state is RunState.RUNNING and run.instance_id not in up:
                runs.end_lost(run.run_id, self.context.clock.now())


def experiment_of(
    context: Context, workload: RecipeWorkload, *, fresh: bool, retry_failed: bool
) -> ExperimentUp | None:
    """Return the experiment of a recipe; None if it has none.

    Raises:
        RecipeError: It cannot run, or there is none whose failed trials could be run again.
    """
    experiment = workload.recipe.experiment
    if experiment is None:
        if retry_failed:
            raise RecipeError("--retry-failed is for a recipe with an experiment")
        return None
    up = ExperimentUp(context, workload, experiment, fresh=fresh, retry_failed=retry_failed)
    up.check()
    return up


def experiment_table(
    context: Context, recipe: Recipe, experiment: Experiment, statuses: Sequence[TrialStatus]
) -> ExperimentTable:
    """Return what the tables of a recipe's experiment are made of."""
    runs = [status.run for status in statuses if status.run is not None]
    return ExperimentTable(
        name=recipe.name,
        statuses=statuses,
        costs=costs_of_runs(context.measurements, runs, context.clock.now()),
        metric=experiment.metric,
        maximize=experiment.goal == "maximize",
        rehearsal=recipe.cloud == "local",
        total=experiment.count,
    )


def report_fetched(context: Context, cluster: Cluster, *, command: str) -> Report | None:
    """Return what a detached cluster has measured; None if it has measured nothing, or trained."""
    recipe = read_recipe(cluster.recipe_text, cluster.recipe_path)
    runs = context.runs.of_cluster(cluster.cluster_id)
    digests = sorted({run.experiment for run in runs} - {""})
    if recipe.experiment is not None and digests:
        records = ExperimentRecords(runs=context.runs, experiment=recipe.experiment, digest=digests[0])
        table = experiment_table(context, recipe, recipe.experiment, records.statuses())
        return experiment_report(table, command=command)
    rows = rows_of_runs(context.measurements, [run.run_id for run in runs], context.clock.now())
    return cost_report(rows, View(details=True), command=command) if rows else None


def _anew(status: TrialStatus) -> TrialStatus:
    return TrialStatus(trial=status.trial, state=TrialState.WAITING)


def write_page(context: Context, file: str, table: ExperimentTable, records: ExperimentRecords) -> None:
    """Write the page.

    Raises:
        RecipeError: The extra `plot` is not installed, or the file cannot be written.
    """
    # Only who asks for a page loads what draws it.
    from dlcloud.report.experiment import experiment_charts  # noqa: PLC0415
    from dlcloud.report.page import bundle, page  # noqa: PLC0415

    report = experiment_report(table)
    failures = _failures(context, table)
    best, *others = report.sections
    sections = [replace(best, leads=1), *others, *([failures] if failures else [])]
    report = replace(report, sections=sections)
    runs = records.runs.of_experiment(records.digest)
    script = bundle(context.paths.make_folder(context.paths.cache))
    subtitle = f"{len(runs)} runs, {context.clock.now():%Y-%m-%d %H:%M} UTC"
    charts = experiment_charts(table, runs)
    text = page(
        template("report.html"), script, report, charts, title=f"dlcloud {table.name}", subtitle=subtitle
    )
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise RecipeError(f"--html {file}: {error.strerror}") from error


def _failures(context: Context, table: ExperimentTable) -> Section | None:
    """Return the last lines of the trials that were given up; None without any."""
    failed = [status for status in table.statuses if status.state is TrialState.FAILED and status.run]
    rows = [
        (
            str(status.trial.number),
            " / ".join(log_tail(context.paths.run_log(status.run.run_id)).splitlines()[-LAST_LINES:]),
        )
        for status in failed[:MOST_FAILURES]
        if status.run is not None
    ]
    if not rows:
        return None
    return Section(heading="the last lines of these trials", titles=("trial", "last lines"), rows=rows)
