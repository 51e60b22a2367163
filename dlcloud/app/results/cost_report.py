"""`dlcloud cost-report`: throughput, speed-up and cost of what was measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlcloud.analysis.cost import BilledCost, ResultRow, reconcile
from dlcloud.analysis.spending import ClusterCost, costs_of_clusters
from dlcloud.app.context import Context
from dlcloud.app.results.predict import gpu_types, prices_of_types
from dlcloud.app.results.rows import commands_again, load_rows, refuse_unknown, warn_of_namesakes
from dlcloud.app.results.training import StoredTraining, load_timelines, read_timelines, trainings_of_home
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.events import Info
from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, predict_jobs
from dlcloud.report.answer import buying_sections
from dlcloud.report.cost_charts import cost_charts, spending_charts
from dlcloud.report.cost_tables import (
    EMPTY,
    View,
    billed_records,
    billed_section,
    cost_report,
    spending_records,
    spending_sections,
    total_section,
    unasked,
)
from dlcloud.report.files import report_file
from dlcloud.report.page import Chart, bundle, page, picture
from dlcloud.report.prediction import prediction_charts
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import (
    course_charts,
    step_charts,
    timeline_charts,
    training_records,
    trainings_section,
)
from dlcloud.resources.texts import template
from dlcloud.resources.type_table import type_table
from dlcloud.store.measurements import Selection

PICTURES = (".png", ".svg")
MOST_PRINTED, MOST_ON_PAGE = 5, 20
"""The newest trainings that the terminal and the page list; reading one takes up to a second."""
MOST_DRAWN = 3
"""The newest trainings that are drawn."""


def run(
    context: Context,
    *,
    selection: Selection,
    view: View,
    html: str = "",
    plot: str = "",
    timeline: Sequence[str] = (),
    billed: bool = False,
    spending: bool = False,
    output: str,
) -> None:
    """Print throughput, speed-up and cost of what was measured.

    Args:
        context: The collaborators.
        selection: Of the results; those that it names by run or cluster are shown whole.
        view: What is shown of them, and in which order.
        html: The file of a page with charts; empty for none.
        plot: The file of a picture with the charts; empty for none.
        timeline: Files with a trainer's records, which are drawn, too.
        billed: Show what AWS billed; costs 0.01 USD a request.
        spending: Show what each cluster of this home cost, by cluster and by day.
        output: The format.
    """
    store = context.measurements
    refuse_unknown(store, selection)
    _refuse_unknown_format(plot)
    newest = view.newest and not selection.names
    rows = load_rows(store, selection, context.clock.now(), newest=newest)
    warn_of_namesakes(context, rows)
    # A training without results still has a timeline, where it is named.
    named = store.run_ids(selection) if selection.names_runs else []
    empty = "" if rows else _empty(context, named)
    trainings, older = trainings_of_home(context, selection, MOST_ON_PAGE if html else MOST_PRINTED)
    report = cost_report(rows, view, empty=empty, commands=commands_again(context, rows))
    report = _with_trainings(report, trainings, older, whole=view.wide)
    if not view.summary:
        report = _with_spending(context, report, whole=spending)
    if billed:
        report = _with_bills(context, report, rows)
    if html or plot:
        runs = [*dict.fromkeys([*(row.run.run_id for row in rows), *named])]
        with context.console.waiting("drawing ..."):
            charts = cost_charts(rows, view.market)
            if html:
                costs = _costs(context)
                if selection != Selection():  # the spending of clusters without such results is not drawn
                    shown = {row.run.cluster_name for row in rows}
                    shown |= {stored.cluster.name for stored in trainings}
                    costs = [cost for cost in costs if cost.cluster.name in shown]
                charts += spending_charts(costs)
            drawn, count = _draw_trainings(context, trainings, runs, timeline)
            charts += drawn
            if html:
                heading = f"{_counts(rows, count)}, {context.clock.now():%Y-%m-%d %H:%M} UTC"
                charts = _write_page(
                    context,
                    html,
                    report=report,
                    charts=charts,
                    rows=rows,
                    market=view.market,
                    heading=heading,
                )
            if plot:
                if not charts:
                    message = "there is nothing to draw: no comparison and no price"
                    raise RecipeError(message, "dlcloud cost-report")
                _write(context, plot, picture(charts, Path(plot).suffix.lower().lstrip(".")))
    say(render(report, Format(output)))


def _refuse_unknown_format(plot: str) -> None:

    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")


def _empty(context: Context, named: Sequence[str]) -> str:
    """Return what is stored, if nothing of it was selected."""
    if named:
        return "no benchmark ran there: dlcloud training shows what a training came to"
    kinds = context.measurements.kinds()
    if not kinds:
        return EMPTY
    stored = {
        "types": {kind.instance_type for kind in kinds},
        "benchmarks": {kind.workload for kind in kinds},
        "settings": {kind.setting for kind in kinds},
    }
    lines = "\n".join(f"{word}: {', '.join(sorted(names))}" for word, names in stored.items())
    return f"nothing that was measured fits; there are\n{lines}"


def _with_spending(context: Context, report: Report, *, whole: bool) -> Report:
    """Return the report with what all clusters of this home cost, before its answer."""
    costs = _costs(context)
    sections = spending_sections(costs) if whole else total_section(costs)
    tables = [section for section in report.sections if not section.leads]
    answer = [section for section in report.sections if section.leads]
    extra = {**report.extra, "spending": spending_records(costs)} if whole else report.extra
    return replace(report, sections=[*tables, *sections, *answer], extra=extra)


def _costs(context: Context) -> list[ClusterCost]:
    """Return what each cluster of this home cost."""
    clusters = context.clusters.all()
    members = {cluster.cluster_id: context.clusters.members(cluster.cluster_id) for cluster in clusters}
    return costs_of_clusters(clusters, members, context.clock.now())


def _with_trainings(
    report: Report, trainings: Sequence[StoredTraining], older: int, *, whole: bool
) -> Report:
    """Return the report with the elastic trainings, before its answer."""
    by_name = {stored.cluster.name: (stored.training, stored.rehearsal) for stored in trainings}
    tables = [section for section in report.sections if not section.leads]
    answer = [section for section in report.sections if section.leads]
    sections = [*tables, *trainings_section(by_name, whole=whole, older=older), *answer]
    extra = {**report.extra, **({"trainings": training_records(by_name)} if by_name else {})}
    return replace(report, sections=sections, extra=extra)


def _with_bills(context: Context, report: Report, rows: Sequence[ResultRow]) -> Report:
    """Return the report with what AWS billed for the clusters of its rows."""
    ids = {row.run.cluster_id for row in rows}
    own = [c for c in context.clusters.all() if c.cluster_id in ids and c.cloud != "local"]
    now = context.clock.now()
    billed: dict[str, BilledCost] = {}
    unanswered = "" if own else unasked(rows)
    if own:
        first = min(cluster.created_at for cluster in own)
        try:
            billed = context.clouds.billing().by_cluster([c.cluster_id for c in own], since=first, now=now)
        except CloudError as error:
            # Only this section lacks its figures; the rest of the report is complete.
            unanswered = f"AWS's side is not known: {error.message}"
            unanswered += f"; {error.hint}" if error.hint else ""
    members = {cluster.cluster_id: context.clusters.members(cluster.cluster_id) for cluster in own}
    reconciled = reconcile(own, members, billed, now)
    return replace(
        report,
        sections=[*report.sections, billed_section(reconciled, unanswered)] if rows else report.sections,
        extra={**report.extra, "billed": billed_records(reconciled, unanswered)},
    )


def _draw_trainings(
    context: Context, trainings: Sequence[StoredTraining], runs: Sequence[str], files: Sequence[str]
) -> tuple[list[Chart], int]:
    """Return the charts of trainings and of other runs' timelines, and the number of both."""
    trained = {stored.cluster.name for stored in trainings}
    timelines = [
        timeline for timeline in load_timelines(context.measurements, runs) if timeline.run not in trained
    ]
    timelines += [timeline for file in files for timeline in read_timelines(file)]
    charts: list[Chart] = []
    for place, timeline in enumerate(timelines):
        charts += timeline_charts(timeline, place)
    for place, stored in enumerate(trainings[:MOST_DRAWN]):
        charts += course_charts(stored.cluster.name, stored.course, place, rehearsal=stored.rehearsal)
        charts += step_charts(stored.timeline, stored.cluster.name, len(timelines) + place, stored.course)
    return charts, len(timelines) + len(trainings)


def _write_page(
    context: Context,
    file: str,
    *,
    report: Report,
    charts: list[Chart],
    rows: Sequence[ResultRow],
    market: Market,
    heading: str,
) -> list[Chart]:
    """Write the page; return its charts, predictions included.

    Raises:
        RecipeError: The file cannot be written.
    """
    jobs = _predictions(context, rows, market)
    charts = [*prediction_charts(jobs, market), *charts]
    report = replace(report, sections=[*buying_sections(rows, jobs, market), *report.sections])
    script = bundle(context.paths.make_folder(context.paths.cache))
    text = page(
        template("report.html"), script, report, charts, title="dlcloud cost report", subtitle=heading
    )
    _write(context, file, text.encode())
    return charts


def _write(context: Context, file: str, content: bytes) -> None:
    with report_file(Path(file)) as draft:
        draft.write_bytes(content)
    context.emit(Info(message=f"written: {file}"))


def _predictions(context: Context, rows: Sequence[ResultRow], market: Market) -> list[PredictedJob]:
    """Return the predictions of the rows' jobs in their region; none where its prices are not at hand."""
    regions = {row.run.region for row in rows if not row.rehearsal}
    if len(regions) != 1:
        return []
    table = type_table()
    try:
        prices = prices_of_types(context, table, regions.pop(), market, live=False)
    except RecipeError:
        return []
    jobs = predict_jobs([row for row in rows if not row.rehearsal], table, prices, market, gpus=gpu_types())
    return [job for job in jobs if not job.refused]


def _counts(rows: Sequence[ResultRow], trainings: int) -> str:
    counts = []
    if rows or not trainings:
        runs = len({row.run.run_id for row in rows})
        counts.append(f"{_count(len(rows), 'result')} of {_count(runs, 'run')}")
    if trainings:
        counts.append(_count(trainings, "training"))
    return ", ".join(counts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
