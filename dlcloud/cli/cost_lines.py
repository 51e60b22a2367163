"""Lines of the cost report: what the store holds, priced and billed."""

from collections.abc import Mapping, Sequence

from dlcloud.cli.context import Context
from dlcloud.cloud.catalog import Catalog
from dlcloud.core.bill import Bill, bill_of
from dlcloud.core.quote import MarketPrices, peak_tflops, quote_of
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
        quotes=_quotes(store, runs),
        bills=_bills(context, runs),
        peaks=_peaks(runs),
    )


def lines_of_runs(context: Context, run_ids: Sequence[str]) -> list[ResultRow]:
    """Return the lines of runs, everything that they measured."""
    return cost_lines(context, Selection(run_ids=run_ids)) if run_ids else []


def _quotes(store: Measurements, runs: Sequence[Run]) -> Mapping[str, MarketPrices]:
    stored = store.quotes([run.run_id for run in runs])
    catalog = Catalog()
    return {
        run.run_id: quote_of(
            run, stored.get(run.run_id), catalog.on_demand_price(run.instance_type, run.region)
        )
        for run in runs
    }


def _bills(context: Context, runs: Sequence[Run]) -> Mapping[str, Bill]:
    store, now = context.measurements, context.clock.now()
    instances = {run.instance_id for run in runs}
    leases, beside = store.leases(instances), store.on_instances(instances)
    return {
        run.run_id: bill_of(run, beside[run.instance_id], leases[run.instance_id], now)
        for run in runs
        if run.instance_id in leases
    }


def _peaks(runs: Sequence[Run]) -> Mapping[str, float | None]:
    catalog = Catalog()
    known = {name: catalog.hardware(name) for name in {run.instance_type for run in runs}}
    return {name: peak_tflops(hardware) for name, hardware in known.items() if hardware is not None}
