"""What `import dlcloud` offers: the use cases of commands as functions, whose results are rows.

`dlcloud/__init__.py` names what is public, and imports this module when one of them is first used. Each
function builds its own collaborators, as a command does, and closes them before it returns; it leaves the
signal handlers and the log of the caller's process as they were. In the main thread, Ctrl-C cleans up as in
the command. A function returns rows or raises a `DlcloudError`; it never exits.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dlcloud.app.clusters.down import run as run_down
from dlcloud.app.clusters.experiment import experiment_of, experiment_table
from dlcloud.app.clusters.up import run as run_up
from dlcloud.app.clusters.workload import read_workload
from dlcloud.app.context import Context
from dlcloud.app.results.export import report_of_rows
from dlcloud.app.results.rows import load_rows, refuse_unknown
from dlcloud.app.terminal.signals import interrupts
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import PLAIN, cost_report
from dlcloud.report.experiment import experiment_charts
from dlcloud.report.notebook import Rows
from dlcloud.report.table import Report
from dlcloud.store.measurements import Selection

Texts = str | Sequence[str]


def up(
    recipe: str | Path | Recipe,
    *,
    cloud: str = "",
    types: Texts = (),
    region: str = "",
    market: str = "",
    count: int | str = "",
    settings: Texts = (),
    env: Mapping[str, object] | None = None,
    secrets: Mapping[str, str] | None = None,
    name: str = "",
    cidrs: Texts = (),
    keep: bool = False,
    yes: bool = False,
    fresh: bool = False,
    retry_failed: bool = False,
    quiet: bool = False,
) -> Rows:
    """Run a recipe as `dlcloud up` does: launch, run, download the results, terminate.

    Ctrl-C, and any exception, cleans up. The rows are the trials of an experiment, the results of a benchmark
    or a command, or the summary of an elastic training.

    Args:
        recipe: Its file, the name of a bundled one, or a `dlcloud.Recipe`.
        cloud: `aws`, or `local` for a rehearsal; this and the next seven change the recipe for this call.
        types: Instance types, in the order in which they are tried.
        region: The AWS Region.
        market: `on-demand`, `spot` or `spot-then-on-demand`.
        count: The number of instances, or a range such as `"1-4"`.
        settings: Names of settings; the others are left out.
        env: Environment variables, in addition to the recipe's or instead of them.
        secrets: Sources of secrets by their names, such as `env:NAME` or `ssm:PATH`.
        name: The cluster's name; a kept cluster of that name is used again.
        cidrs: The networks that may reach the instances; by default your own address.
        keep: Keep the instances up afterwards.
        yes: Spend money without asking.
        fresh: Measure again what an interrupted call had measured.
        retry_failed: Run the trials of an experiment again that were given up.
        quiet: Print no progress on stderr.

    Raises:
        DlcloudError: What failed; results that were measured before are stored.
    """
    changes = _overrides(
        cloud=cloud,
        types=types,
        region=region,
        market=market,
        count=count,
        settings=settings,
        env=env,
        secrets=secrets,
    )
    shown: list[Report] = []
    with _session("up", quiet=quiet) as context:
        run_up(
            context,
            recipe=_source(recipe),
            overrides=changes,
            name=name,
            cidrs=_texts(cidrs),
            keep=keep,
            yes=yes,
            fresh=fresh,
            retry_failed=retry_failed,
            show=shown.append,
        )
    return Rows(shown[-1] if shown else Report(command="up", records=[], sections=[], empty="nothing ran"))


def plan(
    recipe: str | Path | Recipe,
    *,
    cloud: str = "",
    types: Texts = (),
    region: str = "",
    market: str = "",
    count: int | str = "",
    settings: Texts = (),
    env: Mapping[str, object] | None = None,
    secrets: Mapping[str, str] | None = None,
    name: str = "",
    cidrs: Texts = (),
    keep: bool = False,
    quiet: bool = False,
) -> Rows:
    """Return what `up` would launch, in the order in which it would be tried, with prices; create nothing.

    The arguments are those of `up`.

    Raises:
        DlcloudError: The recipe is at fault, or the cloud refuses.
    """
    changes = _overrides(
        cloud=cloud,
        types=types,
        region=region,
        market=market,
        count=count,
        settings=settings,
        env=env,
        secrets=secrets,
    )
    shown: list[Report] = []
    with _session("up", quiet=quiet) as context:
        run_up(
            context,
            recipe=_source(recipe),
            overrides=changes,
            name=name,
            cidrs=_texts(cidrs),
            keep=keep,
            dry_run=True,
            show=shown.append,
        )
    return Rows(shown[-1])


def results(
    *names: str,
    types: Texts = (),
    benchmarks: Texts = (),
    cases: Texts = (),
    settings: Texts = (),
    clusters: Texts = (),
    clouds: Texts = (),
    since: datetime | str | None = None,
    until: datetime | str | None = None,
) -> Rows:
    """Return what was measured, the oldest first: one row a result, with throughput, prices and cost.

    Args:
        names: Of runs or clusters; none for all.
        types: Instance types or their families (`c7i`).
        benchmarks: Names of benchmarks or recipes.
        cases: Names of cases (`vgg16 batch 1`).
        settings: Names of settings (`int8`).
        clusters: Names of clusters.
        clouds: `aws` for measurements, `local` for rehearsals.
        since: Runs that started on this day (UTC), or at this time, or later.
        until: Runs that started before this day or time.

    Raises:
        RecipeError: A name is not stored.
    """
    selection = Selection(
        names=names,
        types=_texts(types),
        benchmarks=_texts(benchmarks),
        cases=_texts(cases),
        settings=_texts(settings),
        clusters=_texts(clusters),
        clouds=_texts(clouds),
        since=_time(since),
        until=_time(until),
    )
    with _session("cost-report", quiet=True) as context:
        refuse_unknown(context.measurements, selection)
        rows = load_rows(context.measurements, selection, context.clock.now())
        report = replace(report_of_rows(rows), sections=cost_report(rows, PLAIN).sections)
    return Rows(report, lambda: cost_charts(rows, Market.ON_DEMAND))


def trials(
    recipe: str | Path | Recipe,
    *,
    cloud: str = "",
    types: Texts = (),
    region: str = "",
    market: str = "",
    count: int | str = "",
    settings: Texts = (),
    env: Mapping[str, object] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Rows:
    """Return the trials of an experiment as they are stored, in their order.

    The arguments are those of the `up` that ran it.

    Raises:
        RecipeError: It has no experiment.
    """
    changes = _overrides(
        cloud=cloud,
        types=types,
        region=region,
        market=market,
        count=count,
        settings=settings,
        env=env,
        secrets=secrets,
    )
    with _session("up", quiet=True) as context:
        workload = read_workload(context, _source(recipe), changes)
        experiment = experiment_of(context, workload, fresh=False, retry_failed=False)
        if experiment is None:
            message = f"{workload.recipe.name} has no experiment"
            raise RecipeError(message, "dlcloud.results() has its results")
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
    shown: list[Report] = []
    with _session("down", quiet=quiet) as context:
        run_down(context, clusters=names, show=shown.append)
    return Rows(shown[-1])


@contextmanager
def _session(command: str, *, quiet: bool) -> Iterator[Context]:
    """Yield the collaborators of one call; `command` is the one whose use case is called."""
    with interrupts(in_library=True), Context(command, in_library=True, quiet=quiet) as context:
        yield context


def _source(recipe: str | Path | Recipe) -> str | Recipe:
    return recipe if isinstance(recipe, Recipe) else str(recipe)


def _overrides(
    *,
    cloud: str,
    types: Texts,
    region: str,
    market: str,
    count: int | str,
    settings: Texts,
    env: Mapping[str, object] | None,
    secrets: Mapping[str, str] | None,
) -> Overrides:
    return Overrides(
        cloud=cloud,
        types=_texts(types),
        region=region,
        market=market,
        count=str(count),
        settings=_texts(settings),
        environment={name: str(value) for name, value in (env or {}).items()},
        secrets=secrets or {},
    )


def _texts(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _time(value: datetime | str | None) -> datetime | None:
    """Return an aware time; a day without a time is its beginning."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RecipeError(f"{value!r} is not a date like 2026-09-01 or 2026-09-01T12:00") from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
