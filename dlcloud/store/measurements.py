"""What reports read: the newest results, or all, with everything that is known of their runs."""

import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from dlcloud.core.cost import BillingPeriod, MarketPrices
from dlcloud.core.instance import Market, Price
from dlcloud.core.result import Comparison, Result, Run, comparison_of, result_of
from dlcloud.store.database import Database, optional_time
from dlcloud.store.runs import run_of
from dlcloud.store.selection import Selection

Parsed = TypeVar("Parsed")

log = logging.getLogger(__name__)

# One parameter, however many ids there are: SQLite takes a bounded number of them.
_AMONG = "IN (SELECT value FROM json_each(?))"

_KIND = "workload, instance_type, cloud, case_name, setting"
NEXT_KIND = f"SELECT {_KIND} FROM results {{}} ORDER BY {_KIND} LIMIT 1"
# With the end of time as its last word, the search lands behind all results of the kind, and reads none.
BEHIND_KIND = f"WHERE ({_KIND}, started_at) > (?, ?, ?, ?, ?, '9999')"
NEWEST_OF_KIND = (
    "SELECT run_id, position FROM results"
    " WHERE workload = ? AND instance_type = ? AND cloud = ? AND case_name = ? AND setting = ?"
    " AND started_at >= ? AND started_at < ? ORDER BY started_at DESC, run_id DESC, position DESC LIMIT 1"
)
_NEVER = "9999"


class Kind(NamedTuple):
    """What a result is of; the newest of each is what a report shows."""

    workload: str
    instance_type: str
    cloud: str
    case_name: str
    setting: str


class Measurements:
    """Reads of the tables runs, records, results, run_prices and leases.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def chosen(self, selection: Selection, *, newest: bool) -> dict[str, set[int]]:
        """Return the places of results by run id.

        Args:
            selection: Which.
            newest: Only the newest of each type, benchmark, case and setting, real and rehearsed apart.
        """
        if newest and not selection.bound_to_runs:
            return self._newest(selection)
        condition, values = selection.condition
        # SQLite takes the other columns of the row that has the maximum.
        what, end = (", max(started_at)", f" GROUP BY {_KIND}") if newest else ("", "")
        statement = f"SELECT run_id, position{what} FROM results WHERE {condition}{end}"
        return _places(self._database.read(statement, *values))

    def kinds(self) -> list[Kind]:
        """Return every type, benchmark, case and setting that has a result.

        Each is sought behind the one before it in the index: as many steps as there are kinds, however many
        results each has. SQLite itself would read them all.
        """
        found: list[Kind] = []
        after = ""
        while rows := self._database.read(NEXT_KIND.format(after), *(found[-1] if found else ())):
            found.append(Kind(*rows[0]))
            after = BEHIND_KIND
        return found

    def _newest(self, selection: Selection) -> dict[str, set[int]]:
        since, until = (time.isoformat() if time else None for time in (selection.since, selection.until))
        kinds = [kind for kind in self.kinds() if selection.takes(**kind._asdict())]
        return _places(
            row
            for kind in kinds
            for row in self._database.read(NEWEST_OF_KIND, *kind, since or "", until or _NEVER)
        )

    def run_ids(self, selection: Selection) -> list[str]:
        """Return the runs that are selected, the oldest first, those without any result included."""
        condition, values = selection.condition
        table = "results" if selection.cases or selection.settings else "runs"
        statement = f"SELECT DISTINCT run_id FROM {table} WHERE {condition} ORDER BY started_at, run_id"
        return [row["run_id"] for row in self._database.read(statement, *values)]

    def names(self, wanted: Collection[str]) -> set[str]:
        """Return those of the names that a run or a cluster bears."""
        statement = f"SELECT run_id AS name FROM runs WHERE run_id {_AMONG}"
        statement += f" UNION SELECT cluster_name FROM runs WHERE cluster_name {_AMONG}"
        ids = json.dumps(sorted(wanted))
        return {row["name"] for row in self._database.read(statement, ids, ids)}

    def runs(self, run_ids: Collection[str]) -> list[Run]:
        """Return runs, the oldest first."""
        return [run_of(row) for row in self._rows("runs", "run_id", run_ids, "started_at, run_id")]

    def results(self, chosen: Mapping[str, Collection[int]]) -> dict[str, list[Result]]:
        """Return results by run id, in the order in which they were measured."""
        return self._parsed(chosen, "result", result_of, places=chosen)

    def comparisons(self, run_ids: Collection[str]) -> dict[str, list[Comparison]]:
        """Return comparisons by run id."""
        return self._parsed(run_ids, "comparison", comparison_of)

    def overall(self, run_ids: Collection[str]) -> dict[str, list[Comparison]]:
        """Return comparisons with the best of several baselines by run id."""
        return self._parsed(run_ids, "overall", comparison_of)

    def starts(self, run_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """Return what each run's program told of itself and its machine, by run id."""
        return {name: told[0] for name, told in self._parsed(run_ids, "start", dict).items()}

    def records(self, run_ids: Collection[str], kind: str) -> dict[str, list[dict[str, Any]]]:
        """Return the records of a kind, by run id."""
        return self._parsed(run_ids, kind, dict)

    def every_record(self, run_ids: Collection[str], left_out: Collection[str]) -> dict[str, list[Any]]:
        """Return the records of all kinds but some, by run id, in the order in which they were written."""
        found: dict[str, list[Any]] = {}
        statement = f"SELECT run_id, line FROM records WHERE run_id {_AMONG} AND kind NOT {_AMONG}"
        statement += " ORDER BY run_id, position"
        for row in self._database.read(statement, json.dumps([*run_ids]), json.dumps([*left_out])):
            found.setdefault(row["run_id"], []).append(json.loads(row["line"]))
        return found

    def is_member(self, instance_id: str) -> bool:
        """Tell whether an instance was launched from this home."""
        return bool(self._database.read("SELECT 1 FROM members WHERE instance_id = ?", instance_id))

    def market_prices(self, run_ids: Collection[str]) -> dict[str, MarketPrices]:
        """Return the prices that were stored with runs; a run of an older dlcloud has none."""
        prices: dict[str, dict[str, Price]] = {}
        statement = (
            "SELECT run_id, instance_type, region, p.market, p.zone, p.hourly_usd, p.as_of, p.source"
            f" FROM run_prices AS p JOIN runs USING (run_id) WHERE run_id {_AMONG}"
        )
        for row in self._database.read(statement, json.dumps([*run_ids])):
            prices.setdefault(row["run_id"], {})[row["market"]] = _price(row)
        return {
            run_id: MarketPrices(on_demand=by_market.get(Market.ON_DEMAND), spot=by_market.get(Market.SPOT))
            for run_id, by_market in prices.items()
        }

    def billing_periods(self, instance_ids: Collection[str]) -> dict[str, BillingPeriod]:
        """Return when instances were launched and ended, by their ids: our own, and imported ones."""
        statement = (
            f"SELECT instance_id, launched_at, ended_at, disk_gib FROM leases WHERE instance_id {_AMONG}"
            " UNION ALL SELECT instance_id, launched_at, members.ended_at, disk_gib"
            f" FROM members JOIN clusters USING (cluster_id) WHERE instance_id {_AMONG}"
        )
        ids = json.dumps([*instance_ids])
        return {row["instance_id"]: _billing_period(row) for row in self._database.read(statement, ids, ids)}

    def on_instances(self, instance_ids: Collection[str]) -> dict[str, list[Run]]:
        """Return every run of instances by their ids, the oldest first."""
        found: dict[str, list[Run]] = {}
        for row in self._rows("runs", "instance_id", instance_ids, "started_at, run_id"):
            found.setdefault(row["instance_id"], []).append(run_of(row))
        return found

    def _rows(self, table: str, column: str, wanted: Collection[str], order: str) -> list[sqlite3.Row]:
        statement = f"SELECT * FROM {table} WHERE {column} {_AMONG} ORDER BY {order}"
        return self._database.read(statement, json.dumps([*wanted]))

    def _parsed(
        self,
        run_ids: Collection[str],
        kind: str,
        read: Callable[[Mapping[str, Any]], Parsed],
        places: Mapping[str, Collection[int]] | None = None,
    ) -> dict[str, list[Parsed]]:
        found: dict[str, list[Parsed]] = {}
        statement = f"SELECT run_id, position, line FROM records WHERE kind = ? AND run_id {_AMONG}"
        statement += " ORDER BY run_id, position"
        for row in self._database.read(statement, kind, json.dumps([*run_ids])):
            if places is not None and row["position"] not in places[row["run_id"]]:
                continue
            try:
                told = read(json.loads(row["line"]))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                # One broken record must not hide what all others say.
                log.warning("a %s record of %s cannot be read: %r", kind, row["run_id"], error)
                continue
            found.setdefault(row["run_id"], []).append(told)
        return found


def _places(rows: Iterable[sqlite3.Row]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["run_id"], set()).add(row["position"])
    return found


def _price(row: sqlite3.Row) -> Price:
    return Price(
        instance_type=row["instance_type"],
        region=row["region"],
        market=Market(row["market"]),
        hourly_usd=Decimal(row["hourly_usd"]),
        as_of=datetime.fromisoformat(row["as_of"]),
        source=row["source"],
        zone=row["zone"],
    )


def _billing_period(row: sqlite3.Row) -> BillingPeriod:
    return BillingPeriod(
        instance_id=row["instance_id"],
        launched_at=datetime.fromisoformat(row["launched_at"]),
        ended_at=optional_time(row["ended_at"]),
        disk_gib=row["disk_gib"],
    )
