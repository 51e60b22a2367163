"""Stored results as reports read them, with the facts of their runs.

`cost-report`, `compare`, `export` and `predict` state a `Selection`; `Measurements.select` returns the
positions of the newest results of each kind from the index, and `results` reads only these records. It never
writes: `store/runs.py` does, while a run goes. A record that an older dlcloud wrote, or that a newer one adds
keys to, is read all the same.
"""

import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from dlcloud.analysis.cost import BillingPeriod
from dlcloud.analysis.result import Run, RunState, comparison_of, result_of
from dlcloud.benchmarks.harness.schema import Comparison, Result
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import MarketPrices
from dlcloud.model.untrusted import parse_json
from dlcloud.store.database import Database, Value, read_row

Parsed = TypeVar("Parsed")
log = logging.getLogger(__name__)
# One parameter for any number of ids: SQLite limits the number of parameters.
_BILLED = "instance_id, launched_at, ended_at, disk_gib, interrupted"
_AMONG = "IN (SELECT value FROM json_each(?))"
_KIND = "workload, instance_type, cloud, case_name, setting"
NEXT_KIND = f"SELECT {_KIND} FROM results {{}} ORDER BY {_KIND} LIMIT 1"
# The latest possible time as the last value: the search lands behind all results of the kind, and reads none.
BEHIND_KIND = f"WHERE ({_KIND}, started_at) > (?, ?, ?, ?, ?, '9999')"
NEWEST_OF_KIND = (
    "SELECT run_id, position FROM results"
    " WHERE workload = ? AND instance_type = ? AND cloud = ? AND case_name = ? AND setting = ?"
    " AND started_at >= ? AND started_at < ? ORDER BY started_at DESC, run_id DESC, position DESC LIMIT 1"
)
_NEVER = "9999"
_IN_RUNS = "run_id IN (SELECT run_id FROM runs WHERE {})"


class Kind(NamedTuple):
    """The key of a result; a report shows the newest of each kind."""

    workload: str
    instance_type: str
    cloud: str
    case_name: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filters of results; an empty field selects everything.

    `names` are of runs or clusters. `types` are instance types or their families (`c7i`). A run is selected
    if it started at `since` or later, and before `until`.
    """

    names: Sequence[str] = ()
    run_ids: Sequence[str] = ()
    types: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    cases: Sequence[str] = ()
    settings: Sequence[str] = ()
    clusters: Sequence[str] = ()
    clouds: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None

    @property
    def names_runs(self) -> bool:
        """True if it names runs or clusters, which have few results."""
        return bool(self.names or self.run_ids or self.clusters)

    def selects(self, *, workload: str, instance_type: str, cloud: str, case_name: str, setting: str) -> bool:
        """True if a kind of result is selected, regardless of its time and run."""
        family = instance_type.partition(".")[0]
        filters = (
            (self.benchmarks, {workload}),
            (self.types, {instance_type, family}),
            (self.clouds, {cloud}),
            (self.cases, {case_name}),
            (self.settings, {setting}),
        )
        return all(not selected or values & set(selected) for selected, values in filters)

    @property
    def condition(self) -> tuple[str, list[Value]]:
        """The SQL condition with its values."""
        parts: list[tuple[str, list[Value]]] = [
            *_one_of("run_id", self.run_ids),
            *_one_of("workload", self.benchmarks),
            *_one_of("case_name", self.cases),
            *_one_of("setting", self.settings),
            *_one_of("cloud", self.clouds),
        ]
        if self.types:
            one = "instance_type = ? OR substr(instance_type, 1, instr(instance_type, '.') - 1) = ?"
            anyone = " OR ".join([one] * len(self.types))
            parts.append((f"({anyone})", [name for name in self.types for _ in range(2)]))
        for part, values in _one_of("cluster_name", self.clusters):
            parts.append((_IN_RUNS.format(part), values))
        if self.names:
            marks = _marks(self.names)
            either = f"run_id IN ({marks}) OR cluster_name IN ({marks})"
            parts.append((_IN_RUNS.format(either), [*self.names, *self.names]))
        if self.since is not None:
            parts.append(("started_at >= ?", [self.since.isoformat()]))
        if self.until is not None:
            parts.append(("started_at < ?", [self.until.isoformat()]))
        condition = " AND ".join(text for text, _ in parts) or "1"
        return condition, [value for _, values in parts for value in values]


class Measurements:
    """Reads of the tables runs, records, results, run_prices and leases.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def select(self, selection: Selection, *, newest: bool) -> dict[str, set[int]]:
        """Return the positions of results by run id.

        Args:
            selection: The filters.
            newest: Only the newest of each type, benchmark, case and setting, real and rehearsed apart.
        """
        if newest and not selection.names_runs:
            return self._newest(selection)
        condition, values = selection.condition
        # SQLite returns the other columns of the row with the maximum.
        column, group = (", max(started_at)", f" GROUP BY {_KIND}") if newest else ("", "")
        statement = f"SELECT run_id, position{column} FROM results WHERE {condition}{group}"
        return _positions(self._database.read(statement, *values))

    def kinds(self) -> list[Kind]:
        """Return every type, benchmark, case and setting that has a result.

        Every kind is sought behind the one before it in the index: as many steps as there are kinds, however
        many results they have. SQLite itself would read all results.
        """
        kinds: list[Kind] = []
        after = ""
        while rows := self._database.read(NEXT_KIND.format(after), *(kinds[-1] if kinds else ())):
            kinds.append(Kind(*rows[0]))
            after = BEHIND_KIND
        return kinds

    def _newest(self, selection: Selection) -> dict[str, set[int]]:
        since, until = (time.isoformat() if time else None for time in (selection.since, selection.until))
        kinds = [kind for kind in self.kinds() if selection.selects(**kind._asdict())]
        return _positions(
            row
            for kind in kinds
            for row in self._database.read(NEWEST_OF_KIND, *kind, since or "", until or _NEVER)
        )

    def run_ids(self, selection: Selection) -> list[str]:
        """Return the selected runs, the oldest first, those without a result included."""
        condition, values = selection.condition
        table = "results" if selection.cases or selection.settings else "runs"
        statement = f"SELECT DISTINCT run_id FROM {table} WHERE {condition} ORDER BY started_at, run_id"
        return [row["run_id"] for row in self._database.read(statement, *values)]

    def known_names(self, names: Collection[str]) -> set[str]:
        """Return those of the names that a run or a cluster has."""
        statement = f"SELECT run_id AS name FROM runs WHERE run_id {_AMONG}"
        statement += f" UNION SELECT cluster_name FROM runs WHERE cluster_name {_AMONG}"
        ids = json.dumps(sorted(names))
        return {row["name"] for row in self._database.read(statement, ids, ids)}

    def runs(self, run_ids: Collection[str]) -> list[Run]:
        """Return runs, the oldest first."""
        return self._runs("run_id", run_ids)

    def results(self, positions: Mapping[str, Collection[int]]) -> dict[str, list[Result]]:
        """Return results by run id, in the order in which they were measured."""
        return self._read_records(positions, "result", result_of, positions=positions)

    def comparisons(self, run_ids: Collection[str]) -> dict[str, list[Comparison]]:
        """Return comparisons by run id."""
        return self._read_records(run_ids, "comparison", comparison_of)

    def overall_comparisons(self, run_ids: Collection[str]) -> dict[str, list[Comparison]]:
        """Return comparisons with the best of several baselines by run id."""
        return self._read_records(run_ids, "overall", comparison_of)

    def start_records(self, run_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """Return by run id the first record of its program, on itself and its machine."""
        return {run_id: records[0] for run_id, records in self.records(run_ids, "start").items()}

    def records(self, run_ids: Collection[str], kind: str) -> dict[str, list[dict[str, Any]]]:
        """Return the records of a kind, by run id."""
        return self._read_records(run_ids, kind, dict)

    def records_except(self, run_ids: Collection[str], kinds: Collection[str]) -> dict[str, list[Any]]:
        """Return the records of all other kinds by run id, in the order in which they were written."""
        records: dict[str, list[Any]] = {}
        statement = f"SELECT run_id, line FROM records WHERE run_id {_AMONG} AND kind NOT {_AMONG}"
        statement += " ORDER BY run_id, position"
        for row in self._database.read(statement, json.dumps([*run_ids]), json.dumps([*kinds])):
            records.setdefault(row["run_id"], []).append(parse_json(row["line"]))
        return records

    def is_member(self, instance_id: str) -> bool:
        """True if an instance was launched from this home."""
        return bool(self._database.read("SELECT 1 FROM members WHERE instance_id = ?", instance_id))

    def market_prices(self, run_ids: Collection[str]) -> dict[str, MarketPrices]:
        """Return the prices that were stored with runs; a run of an older dlcloud has none."""
        prices: dict[str, dict[str, Price]] = {}
        statement = (
            "SELECT run_id, instance_type, region, p.market, p.zone, p.hourly_usd, p.as_of, p.source"
            f" FROM run_prices AS p JOIN runs USING (run_id) WHERE run_id {_AMONG}"
        )
        for row in self._database.read(statement, json.dumps([*run_ids])):
            prices.setdefault(row["run_id"], {})[row["market"]] = read_row(Price, row)
        return {
            run_id: MarketPrices(on_demand=by_market.get(Market.ON_DEMAND), spot=by_market.get(Market.SPOT))
            for run_id, by_market in prices.items()
        }

    def billing_periods(self, instance_ids: Collection[str]) -> dict[str, BillingPeriod]:
        """Return the billing periods of instances by id, imported ones included."""
        statement = (
            f"SELECT {_BILLED} FROM leases WHERE instance_id {_AMONG}"
            " UNION ALL SELECT instance_id, launched_at, members.ended_at, disk_gib, interrupted"
            f" FROM members JOIN clusters USING (cluster_id) WHERE instance_id {_AMONG}"
        )
        ids = json.dumps([*instance_ids])
        rows = self._database.read(statement, ids, ids)
        return {row["instance_id"]: read_row(BillingPeriod, row) for row in rows}

    def runs_on_instances(self, instance_ids: Collection[str]) -> dict[str, list[Run]]:
        """Return all runs of instances by instance id, the oldest first."""
        runs: dict[str, list[Run]] = {}
        for run in self._runs("instance_id", instance_ids):
            runs.setdefault(run.instance_id, []).append(run)
        return runs

    def interrupted_runs(self, cluster_ids: Collection[str]) -> list[Run]:
        """Return the runs of clusters whose instances were reclaimed or lost, the oldest first; no trials."""
        runs = self._runs("cluster_id", cluster_ids)
        return [run for run in runs if run.state is RunState.LOST and not (run.experiment or run.head_run_id)]

    def runs_of_workers(self, head_run_ids: Collection[str]) -> dict[str, list[Run]]:
        """Return the runs of a job's other nodes by the run of rank 0."""
        runs: dict[str, list[Run]] = {}
        for run in self._runs("head_run_id", head_run_ids):
            runs.setdefault(run.head_run_id, []).append(run)
        return runs

    def _runs(self, column: str, ids: Collection[str]) -> list[Run]:
        statement = f"SELECT * FROM runs WHERE {column} {_AMONG} ORDER BY started_at, run_id"
        return [read_row(Run, row) for row in self._database.read(statement, json.dumps([*ids]))]

    def _read_records(
        self,
        run_ids: Collection[str],
        kind: str,
        read: Callable[[Mapping[str, Any]], Parsed],
        positions: Mapping[str, Collection[int]] | None = None,
    ) -> dict[str, list[Parsed]]:
        records: dict[str, list[Parsed]] = {}
        statement = f"SELECT run_id, position, line FROM records WHERE kind = ? AND run_id {_AMONG}"
        statement += " ORDER BY run_id, position"
        for row in self._database.read(statement, kind, json.dumps([*run_ids])):
            if positions is not None and row["position"] not in positions[row["run_id"]]:
                continue
            try:
                record = read(parse_json(row["line"]))
            except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
                # One broken record must not hide the others.
                log.warning("a %s record of %s cannot be read: %.200r", kind, row["run_id"], error)
                continue
            records.setdefault(row["run_id"], []).append(record)
        return records


def _positions(rows: Iterable[sqlite3.Row]) -> dict[str, set[int]]:
    positions: dict[str, set[int]] = {}
    for row in rows:
        positions.setdefault(row["run_id"], set()).add(row["position"])
    return positions


def _one_of(column: str, names: Sequence[str]) -> list[tuple[str, list[Value]]]:
    return [(f"{column} IN ({_marks(names)})", [*names])] if names else []


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
