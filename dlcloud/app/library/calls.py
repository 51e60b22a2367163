"""The functions of `import dlcloud`: what the commands of the same names do, with rows as results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, Unpack, get_type_hints

from dlcloud.app.clusters import down as down_command
from dlcloud.app.clusters import up as up_command
from dlcloud.app.clusters.experiment_up import experiment_of, experiment_table
from dlcloud.app.clusters.recipe_workload import read_workload
from dlcloud.app.clusters.up import UpOptions
from dlcloud.app.library.session import session
from dlcloud.app.results.export import report_of_rows
from dlcloud.app.results.rows import load_rows, refuse_unknown
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import PLAIN, cost_report
from dlcloud.report.experiment import experiment_charts
from dlcloud.report.notebook import Rows
from dlcloud.report.table import Report
from dlcloud.store.selection import Selection

Texts = str | Sequence[str]
Source = str | Path | Recipe
"""A recipe: its file, the name of a bundled one, or itself."""


class RecipeChanges(TypedDict, total=False):
    """RecipeChanges of a recipe for one call, as the options of `dlcloud up`; `env` is --env, by name."""

    env: Mapping[str, object]
    secrets: Mapping[str, str]
    cloud: str
    types: Texts
    region: str
    market: str
    count: int | str
    settings: Texts


class PlanKeywords(RecipeChanges, total=False):
    """What `plan` takes by name, as the options of `dlcloud up --dry-run`."""

    name: str
    cidrs: Texts
    keep: bool
    quiet: bool


class UpKeywords(PlanKeywords, total=False):
    """What `up` takes by name, as the options of `dlcloud up`; `yes` spends without asking."""

    yes: bool
    fresh: bool
    retry_failed: bool


class ResultsKeywords(TypedDict, total=False):
    """What `results` selects by, as the options of `dlcloud cost-report`; days are UTC."""

    types: Texts
    benchmarks: Texts
    cases: Texts
    settings: Texts
    clusters: Texts
    clouds: Texts
    since: datetime | str
    until: datetime | str


def up(recipe: Source, **options: Unpack[UpKeywords]) -> Rows:
    """Run a recipe as `dlcloud up` does: launch, run, bring results home, terminate.

    Ctrl-C, and any exception, cleans up. The rows are the trials of an experiment, the results of a benchmark
    or a command, or the summary of an elastic training.

    Args:
        recipe: Its file, the name of a bundled one, or a `dlcloud.Recipe`.
        options: See `UpKeywords`.

    Raises:
        DlcloudError: What failed; results that were measured before are stored.
    """
    _refuse_unknown(options, UpKeywords)
    return _up(recipe, options, dry_run=False)


def plan(recipe: Source, **options: Unpack[PlanKeywords]) -> Rows:
    """Return what `up` would launch, in the order in which it would be tried, with prices; create nothing.

    Args:
        recipe: As `up` takes it.
        options: See `PlanKeywords`.

    Raises:
        DlcloudError: The recipe is at fault, or the cloud refuses.
    """
    _refuse_unknown(options, PlanKeywords)
    return _up(recipe, options, dry_run=True)


def results(*names: str, **selection: Unpack[ResultsKeywords]) -> Rows:
    """Return what was measured, the oldest first: one row a result, with throughput, prices and cost.

    Args:
        names: Of runs or clusters; none for all.
        selection: See `ResultsKeywords`.

    Raises:
        RecipeError: A name is not stored.
    """
    with session("cost-report", quiet=True) as context:
        chosen = _selection(names, selection)
        refuse_unknown(context.measurements, chosen)
        rows = load_rows(context.measurements, chosen, context.clock.now())
        report = replace(report_of_rows(rows), sections=cost_report(rows, PLAIN).sections)
    return Rows(report, lambda: cost_charts(rows, Market.ON_DEMAND))


def trials(recipe: Source, **changes: Unpack[RecipeChanges]) -> Rows:
    """Return the trials of an experiment as they are stored, in their order.

    Args:
        recipe: As `up` takes it.
        changes: Those that its `up` had; see `RecipeChanges`.

    Raises:
        RecipeError: It has no experiment.
    """
    _refuse_unknown(changes, RecipeChanges)
    with session("up", quiet=True) as context:
        workload = read_workload(context, _source(recipe), _overrides(changes))
        experiment = experiment_of(context, workload, fresh=False, retry_failed=False)
        if experiment is None:
            raise RecipeError(
                f"{workload.recipe.name} has no experiment", "dlcloud.results() has its results"
            )
        statuses = experiment.statuses()
        report = experiment.report(statuses)
        table = experiment_table(context, workload.recipe, experiment.experiment, statuses)
        runs = context.runs.of_experiment(experiment.records.digest)
    return Rows(report, lambda: experiment_charts(table, runs))


def down(*names: str, quiet: bool = False) -> Rows:
    """Terminate clusters, by default the only one, and all that belongs to them, as `dlcloud down` does.

    Raises:
        RecipeError: There is no such cluster.
        PartialError: Some could not be terminated.
    """
    options = down_command.DownOptions(discard=False, output="table")
    shown: list[Report] = []
    with session("down", quiet=quiet) as context:
        down_command.run(context, options=options, clusters=names, all_clusters=False, show=shown.append)
    return Rows(shown[-1])


def _up(recipe: Source, options: UpKeywords | PlanKeywords, *, dry_run: bool) -> Rows:
    shown: list[Report] = []
    up_options = UpOptions(
        recipe=_source(recipe),
        dry_run=dry_run,
        keep=options.get("keep", False),
        name=options.get("name", ""),
        yes=bool(options.get("yes", False)),
        cidrs=_texts(options.get("cidrs", ())),
        fresh=bool(options.get("fresh", False)),
        retry_failed=bool(options.get("retry_failed", False)),
        overrides=_overrides(options),
        output="table",
    )
    with session("up", quiet=options.get("quiet", False)) as context:
        up_command.run(context, up_options, shown.append)
    return Rows(shown[-1] if shown else Report(command="up", records=[], sections=[], empty="nothing ran"))


def _source(recipe: Source) -> str | Recipe:
    return recipe if isinstance(recipe, Recipe) else str(recipe)


def _refuse_unknown(given: Iterable[str], keywords: type) -> None:
    """Refuse arguments that a function does not have, as Python does.

    Raises:
        TypeError: There is one.
    """
    names = [*get_type_hints(keywords)]
    if unknown := sorted({*given} - {*names}):
        raise TypeError(f"unknown argument {unknown[0]}; there are {', '.join(names)}")


def _overrides(changes: RecipeChanges) -> Overrides:
    return Overrides(
        cloud=changes.get("cloud", ""),
        types=_texts(changes.get("types", ())),
        region=changes.get("region", ""),
        market=changes.get("market", ""),
        count=str(changes.get("count", "")),
        settings=_texts(changes.get("settings", ())),
        environment={name: str(value) for name, value in changes.get("env", {}).items()},
        secrets=changes.get("secrets", {}),
    )


def _selection(names: Sequence[str], selection: ResultsKeywords) -> Selection:
    _refuse_unknown(selection, ResultsKeywords)
    return Selection(
        names=names,
        types=_texts(selection.get("types", ())),
        benchmarks=_texts(selection.get("benchmarks", ())),
        cases=_texts(selection.get("cases", ())),
        settings=_texts(selection.get("settings", ())),
        clusters=_texts(selection.get("clusters", ())),
        clouds=_texts(selection.get("clouds", ())),
        since=_day(selection.get("since")),
        until=_day(selection.get("until")),
    )


def _texts(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _day(value: datetime | str | None) -> datetime | None:
    """Return an aware time; a day without a time is its beginning."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RecipeError(f"{value!r} is not a date like 2026-09-01 or 2026-09-01T12:00") from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
