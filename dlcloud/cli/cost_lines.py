"""Lines of the cost report: what the store holds, priced and billed."""

from collections.abc import Mapping, Sequence

from dlcloud.cli.context import Context
from dlcloud.cloud.catalog import Catalog
from dlcloud.core.cost import MarketPrices, RunCost, cost_of_run, prices_of_run
from dlcloud.core.result import Run, hardware_of
from dlcloud.core.result_row import ResultRow, result_rows
from dlcloud.store.measurements import Measurements
from dlcloud.store.selection import Selection


def cost_lines(context: Context, selection: Selection, *, newest: bool = False) -> list[ResultRow]:
    """Return the lines of what is selected, the oldest run first.

    Args:
        context: The collaborators.
        selection: Which results.
        newest: Only the newest of each type, benchmark, case and setting.
    """
    store = context.measurements
    chosen = store.chosen(selection, newest=newest)
    runs = store.runs(chosen)
    starts = store.starts(chosen)
    return result_rows(
        runs,
        store.results(chosen),
        store.comparisons(chosen),
        {run_id: hardware_of(start) for run_id, start in starts.items()},
        overall=store.overall(chosen),
        prices=_prices(store, runs),
        costs=_costs(context, runs),
        peaks=_peaks(runs),
    )


def lines_of_runs(context: Context, run_ids: Sequence[str]) -> list[ResultRow]:
    """Return the lines of runs, everything that they measured."""
    return cost_lines(context, Selection(run_ids=run_ids)) if run_ids else []


def _prices(store: Measurements, runs: Sequence[Run]) -> Mapping[str, MarketPrices]:
    stored = store.market_prices([run.run_id for run in runs])
    catalog = Catalog()
    return {
        run.run_id: prices_of_run(
            run, stored.get(run.run_id), catalog.on_demand_price(run.instance_type, run.region)
        )
        for run in runs
    }


def _costs(context: Context, runs: Sequence[Run]) -> Mapping[str, RunCost]:
    store, now = context.measurements, context.clock.now()
    instances = {run.instance_id for run in runs}
    periods, beside = store.billing_periods(instances), store.on_instances(instances)
    return {
        run.run_id: cost_of_run(run, beside[run.instance_id], periods[run.instance_id], now)
        for run in runs
        if run.instance_id in periods
    }


def _peaks(runs: Sequence[Run]) -> Mapping[str, float | None]:
    catalog = Catalog()
    known = {name: catalog.hardware(name) for name in {run.instance_type for run in runs}}
    return {name: hardware.peak_tflops for name, hardware in known.items() if hardware is not None}
