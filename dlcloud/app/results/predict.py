"""`dlcloud predict`: what a measured job would do on all other types of a region.

`dlcloud bench --predict` uses the same: `choose_measured` names the few types that tell most, and
`predict_bench` adds predictions for the others to its report. A figure says whether it was predicted or
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from dlcloud.analysis.cost import ResultRow
from dlcloud.app.context import Context
from dlcloud.app.results.rows import load_rows, refuse_unknown, warn_of_namesakes
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Accelerator, Market
from dlcloud.prediction.gpu_types import has_sheet
from dlcloud.prediction.measured_types import Reference, TypeTable
from dlcloud.prediction.offers import PredictedJob, predict_jobs
from dlcloud.prediction.predictor import Belief, choose_types
from dlcloud.prediction.resemblance import resemblances
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.prediction import prediction_report
from dlcloud.report.table import Format, Report, render
from dlcloud.resources.type_table import type_table
from dlcloud.store.measurements import Selection

FEW = 15


MEASURED = 3
CORES = range(4, 65)
"""Types that are chosen without --type: large enough for the bundled benchmarks, and not the dearest."""


def run(
    context: Context,
    *,
    selection: Selection,
    region: str,
    market: Market,
    live: bool = False,
    every: bool = False,
    reference: Reference | None = None,
    output: str,
) -> None:
    """Print predicted throughput and USD per million items of the stored results' jobs on all types.

    Args:
        context: The collaborators.
        selection: Of the results.
        region: The Region of types and prices.
        market: The market by which types are ranked.
        live: Ask AWS for prices instead of the bundled table.
        every: Print every type, not only the cheapest.
        reference: What the user says of the job; None for nothing.
        output: The format.
    """
    store = context.measurements
    refuse_unknown(store, selection)
    table = type_table()
    rows = load_rows(store, selection, context.clock.now(), newest=True)
    warn_of_namesakes(context, rows)
    prices = prices_of_types(context, table, region, market, live=live) if rows else {}
    jobs = predict_jobs(rows, table, prices, market, reference, gpu_types())
    most = len(prices) if every else FEW
    report = prediction_report(jobs, region=region, market=market, most=most, as_of=table.as_of)
    say(render(report, Format(output)))


def prices_of_types(
    context: Context, table: TypeTable, region: str, market: Market, *, live: bool
) -> Mapping[str, Mapping[Market, Decimal]]:
    """Return the hourly prices of the region's types: of AWS, or dated ones of the bundled table.

    Accelerators that jobs are not predicted on (g4ad, inf2) are left out: as CPU types they would be dear.

    Raises:
        RecipeError: The bundled table has no prices of that region, or of spot.
    """
    accelerated = {one.name for one in Catalog().every() if one.accelerator is not None}
    names = {*gpu_types(), *(table.rows.keys() - accelerated)}
    prices = prices_of(context, sorted(names), region, market, live=live)
    return {name: of_type for name, of_type in prices.items() if name in names}


def gpu_types() -> dict[str, Accelerator]:
    """Return the GPUs of the types on which a job can be predicted from other GPUs."""
    return {
        one.name: one.accelerator
        for one in Catalog().every()
        if one.accelerator is not None and not one.retired and has_sheet(one.accelerator)
    }


def prices_of(
    context: Context, names: Sequence[str], region: str, market: Market, *, live: bool
) -> Mapping[str, Mapping[Market, Decimal]]:
    """Return the hourly prices of these types in the region; of the bundled table, of all types.

    Raises:
        RecipeError: The bundled table has no prices of that region, or of spot.
    """
    if not live and market is Market.SPOT:
        raise RecipeError("the bundled table has no spot prices", "--live asks AWS")
    prices = (
        context.clouds.cloud("aws", region).prices.find(names, [*Market])
        if live
        else Catalog().listed_prices(region)
    )
    if not prices:
        raise RecipeError(f"the bundled table has no prices of {region}", "--live asks AWS")
    result: dict[str, dict[Market, Decimal]] = {}
    for price in prices:
        of_type = result.setdefault(price.instance_type, {})
        of_type[price.market] = min(price.hourly_usd, of_type.get(price.market, price.hourly_usd))
    return result


def choose_measured(
    context: Context,
    types: Sequence[str],
    *,
    region: str | None,
    is_local: bool,
    reference: Reference | None = None,
) -> tuple[str, ...]:
    """Return the types to measure: at most three of those named, or of all with an x86 processor.

    Of named types with GPUs in addition at most three, of different GPUs.

    Raises:
        RecipeError: The tables have none of those named.
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
    gpus = gpu_types()
    on_gpus = {gpus[name].name: name for name in reversed(types) if name in gpus and name in prices}
    missing = [name for name in types if name not in open_to and name not in gpus]
    if missing:
        message = f"nothing can be predicted from {', '.join(missing)}"
        raise RecipeError(
            message, "--predict takes types that are sold in the region; leave it out to measure"
        )
    if 0 < len(types) <= MEASURED:
        return tuple(types)
    if types and not open_to:
        return tuple(on_gpus.values())[-MEASURED:]
    belief = Belief(table=table, resemblances=resemblances(table.references, reference))
    chosen = choose_types(belief, open_to, list(hourly), MEASURED)
    return (*chosen, *[*on_gpus.values()][-MEASURED:])


def _is_open(table: TypeTable, name: str, types: Sequence[str]) -> bool:
    if types:
        return name in types
    traits = table.rows[name].traits
    return traits.processor.vendor != "arm" and traits.cores in CORES


def predict_bench(
    context: Context, rows: Sequence[ResultRow], base: Recipe, market: Market, reference: Reference | None
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
    return predict_jobs([*rows, *earlier], table, prices, market, reference, gpu_types())


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
