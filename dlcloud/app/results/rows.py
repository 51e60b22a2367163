"""Rows of the cost report, read from the store and priced."""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from dlcloud.analysis.cost import (
    InstanceRuns,
    MeasuredRun,
    ResultRow,
    RunCost,
    cost_of_nodes,
    cost_of_run,
    prices_of_run,
    rows_of_run,
)
from dlcloud.analysis.result import Run
from dlcloud.app.context import Context
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market, hardware_of
from dlcloud.resources.texts import recipe_names
from dlcloud.runs.matrix import sweepable_benchmarks
from dlcloud.store.measurements import Measurements, Selection


def load_rows(
    store: Measurements, selection: Selection, now: datetime, *, newest: bool = False
) -> list[ResultRow]:
    """Return the rows of the selected results, the oldest run first.

    Args:
        store: The results.
        selection: Which of them.
        now: The end of the bill so far of an instance that is up.
        newest: Only the newest of each type, benchmark, case and setting.
    """
    chosen = store.select(selection, newest=newest)
    results, comparisons = store.results(chosen), store.comparisons(chosen)
    overall = store.overall_comparisons(chosen)
    return [
        row
        for measured in _measured_runs(store, chosen, now)
        for row in rows_of_run(
            measured,
            results.get(measured.run.run_id, ()),
            comparisons.get(measured.run.run_id, ()),
            overall.get(measured.run.run_id, ()),
        )
    ]


def rows_of_runs(store: Measurements, run_ids: Collection[str], now: datetime) -> list[ResultRow]:
    """Return the rows of all results of runs."""
    return load_rows(store, Selection(run_ids=tuple(run_ids)), now) if run_ids else []


def costs_of_runs(store: Measurements, runs: Collection[Run], now: datetime) -> dict[str, RunCost]:
    """Return what runs cost so far, by run id; a run whose instance is not stored has no cost."""
    workers = store.runs_of_workers([run.run_id for run in runs if run.nodes > 1])
    instances = {run.instance_id for job in (runs, *workers.values()) for run in job}
    cost_of = _read_costs(store, instances, now)
    costs = {}
    for run in runs:
        cost = cost_of(run)
        if cost is not None and run.nodes > 1:
            others = [other for worker in workers.get(run.run_id, ()) if (other := cost_of(worker))]
            cost = cost_of_nodes([cost, *others], run.nodes)
        if cost is not None:
            costs[run.run_id] = cost
    return costs


def refuse_unknown(store: Measurements, selection: Selection) -> None:
    """Refuse names of runs and clusters that are not stored.

    Raises:
        RecipeError: A name is not stored.
    """
    names = {*selection.names, *selection.clusters}
    missing = names - store.known_names(names) if names else set()
    if missing:
        raise RecipeError(f"no run or cluster {', '.join(sorted(missing))} is stored", "dlcloud cost-report")


def _read_costs(
    store: Measurements, instances: Collection[str], now: datetime
) -> Callable[[Run], RunCost | None]:
    """Return what tells the cost of a run of these instances; None if the instance is not known."""
    periods = store.billing_periods(instances)
    on_instance = {name: InstanceRuns(runs) for name, runs in store.runs_on_instances(instances).items()}

    def cost_of(run: Run) -> RunCost | None:
        period = periods.get(run.instance_id)
        return cost_of_run(run, on_instance[run.instance_id], period, now) if period else None

    return cost_of


def _measured_runs(store: Measurements, run_ids: Collection[str], now: datetime) -> list[MeasuredRun]:
    runs, starts, stored = store.runs(run_ids), store.start_records(run_ids), store.market_prices(run_ids)
    interrupted = _interrupted_before(store, runs)
    costs = costs_of_runs(store, [*runs, *(run for lost in interrupted.values() for run in lost)], now)
    catalog = Catalog()
    peaks = {name: catalog.hardware(name) for name in {run.instance_type for run in runs}}
    measured = []
    for run in runs:
        hardware = peaks[run.instance_type]
        bundled = catalog.on_demand_price(run.instance_type, run.region)
        measured.append(
            MeasuredRun(
                run=run,
                hardware=hardware_of(starts.get(run.run_id, {})),
                prices=prices_of_run(run, stored.get(run.run_id), bundled),
                cost=costs.get(run.run_id),
                peak_tflops=hardware.peak_tflops if hardware else None,
                fp32_tflops=hardware.fp32_tflops if hardware else None,
                interrupted=tuple(
                    MeasuredRun(run=lost, cost=costs.get(lost.run_id))
                    for lost in interrupted.get(run.run_id, ())
                ),
            )
        )
    return measured


def _interrupted_before(store: Measurements, runs: Collection[Run]) -> dict[str, list[Run]]:
    """Return the interrupted runs that runs repeat or continue, by run id: of their cluster and workload."""
    measured = {run.run_id for run in runs}
    interrupted: dict[str, list[Run]] = {}
    for lost in store.interrupted_runs({run.cluster_id for run in runs}):
        later = (
            run.run_id
            for run in runs
            if (run.cluster_id, run.workload) == (lost.cluster_id, lost.workload)
            and run.started_at > lost.started_at
        )
        if lost.run_id not in measured and (run_id := next(later, None)) is not None:
            interrupted.setdefault(run_id, []).append(lost)
    return interrupted


def commands_again(context: Context, rows: Iterable[ResultRow]) -> Mapping[str, str]:
    """Return the beginning of the command for each run, by run id; none where its workload is not known.

    A run's recipe file may have changed since; a bundled one is named, or its benchmark.
    """
    runs = {row.run.run_id: row.run for row in rows}
    commands = {}
    for run in runs.values():
        cluster = context.clusters.find(run.cluster_id)
        source = _bundled(run.workload)
        if cluster and cluster.recipe_path and Path(cluster.recipe_path).exists():
            source = (cluster.recipe_path,)
        if source:
            options = ["--cloud", "aws"] if run.rehearsal else ["--region", run.region]
            options += ["--market", "spot"] if run.market is Market.SPOT else []
            words = ["dlcloud", "up" if run.experiment else "bench", *source, *options]
            commands[run.run_id] = shlex.join(words)
    return commands


def warn_of_namesakes(context: Context, rows: Iterable[ResultRow]) -> None:
    """Emit which names belong to recipes in several folders: they may be of different jobs, shown as one."""
    folders: dict[str, set[str]] = {}
    for run in {row.run.run_id: row.run for row in rows}.values():
        cluster = context.clusters.find(run.cluster_id)
        if cluster and cluster.recipe_path:
            folders.setdefault(run.workload, set()).add(str(Path(cluster.recipe_path).parent))
    for name, places in folders.items():
        if len(places) > 1:
            message = f"{name} is the name of recipes in {' and '.join(sorted(places))}, compared as one job"
            hint = "if they are different jobs, name them differently"
            context.emit(Warned(message=f"{message}; {hint}"))


def _bundled(name: str) -> tuple[str, ...]:
    """Return the options that name a bundled benchmark or recipe."""
    if name in sweepable_benchmarks():
        return ("-b", name)
    return (name,) if name in recipe_names() else ()
