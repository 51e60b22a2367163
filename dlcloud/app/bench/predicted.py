"""`dlcloud bench --predict`: the types that are measured, and what that says of all others."""

from collections.abc import Sequence
from dataclasses import replace

from dlcloud.app.context import Context
from dlcloud.app.results.predict import FEW, Description, prices_of_types
from dlcloud.app.results.rows import load_rows
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.prediction.choice import choose_types
from dlcloud.prediction.measured_types import TypeTable
from dlcloud.prediction.offers import PredictedJob, predict_jobs
from dlcloud.prediction.predictor import Belief
from dlcloud.prediction.resemblance import resemblances
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.prediction import prediction_report
from dlcloud.report.table import Format, Report
from dlcloud.resources.type_table import type_table
from dlcloud.results.cost import ResultRow
from dlcloud.store.selection import Selection

MEASURED = 3
NOTHING = Description()
"""Nothing is known of the job."""
CORES = range(4, 65)
"""Types that are chosen without --instance: large enough for the bundled benchmarks, and not the dearest."""


def choose_measured(
    context: Context,
    types: Sequence[str],
    *,
    region: str | None,
    is_local: bool,
    description: Description = NOTHING,
) -> tuple[str, ...]:
    """Return the types to measure: at most three of those named, or of all with an x86 processor.

    Raises:
        RecipeError: The table has none of those named.
    """
    table, place = type_table(), region or DEFAULT_REGION
    live = not is_local and place != DEFAULT_REGION
    prices = prices_of_types(context, table, place, Market.ON_DEMAND, live=live)
    hourly = {
        name: float(of_type[Market.ON_DEMAND])
        for name, of_type in prices.items()
        if name in table.rows and Market.ON_DEMAND in of_type
    }
    open_to = {name: usd for name, usd in hourly.items() if _is_open(table, name, types)}
    missing = [name for name in types if name not in open_to]
    if missing:
        message = f"nothing can be predicted from {', '.join(missing)}"
        raise RecipeError(
            message, "--predict takes CPU types that are sold in the region; leave it out to measure"
        )
    if 0 < len(types) <= MEASURED:
        return tuple(types)
    belief = Belief(table=table, resemblances=resemblances(table.references, description.reference()))
    return tuple(choose_types(belief, open_to, list(hourly), MEASURED))


def _is_open(table: TypeTable, name: str, types: Sequence[str]) -> bool:
    if types:
        return name in types
    traits = table.rows[name].traits
    return traits.processor.vendor != "arm" and traits.cores in CORES


def predict_bench(
    context: Context, rows: Sequence[ResultRow], base: Recipe, market: Market, description: Description
) -> list[PredictedJob]:
    """Return the predictions that the rows of a bench, and earlier ones of its jobs, allow."""
    table, now = type_table(), context.clock.now()
    jobs = {(row.run.workload, row.result.case, row.result.setting) for row in rows}
    selection = Selection(benchmarks=sorted({workload for workload, _, _ in jobs}))
    earlier = [
        row
        for row in load_rows(context.measurements, selection, now, newest=True)
        if (row.run.workload, row.result.case, row.result.setting) in jobs and not row.rehearsal
    ]
    prices = prices_of_types(context, table, base.region, market, live=base.cloud != "local")
    return predict_jobs([*rows, *earlier], table, prices, market, description.reference())


def with_predictions(report: Report, jobs: Sequence[PredictedJob], base: Recipe, form: Format) -> Report:
    """Return the report of a bench with its predictions.

    CSV has one table: that of the predictions, in which the measured types are marked.
    """
    predicted = prediction_report(
        jobs, region=base.region, market=Market.ON_DEMAND, most=FEW, as_of=type_table().as_of
    )
    if form is Format.CSV:
        return replace(predicted, command=report.command)
    sections = [*predicted.sections, *report.sections]
    extra = {**report.extra, "predictions": [*predicted.records], **predicted.extra}
    return replace(report, sections=sections, extra=extra)
