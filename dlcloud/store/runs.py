"""What is remembered of runs: how each went, and every record its program wrote."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Any

from dlcloud.core.instance import Market, Price
from dlcloud.core.result import Run, RunState, parse_record
from dlcloud.store.database import Database, optional_time


class Runs:
    """The tables runs and records.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run: Run) -> None:
        """Remember a run that is about to start."""
        self._database.insert("runs", asdict(run))

    def end(self, run_id: str, state: RunState, exit_status: int | None, now: datetime) -> None:
        """Remember how a run ended."""
        self._database.write(
            "UPDATE runs SET state = ?, exit_status = ?, ended_at = ? WHERE run_id = ?",
            state,
            exit_status,
            now.isoformat(),
            run_id,
        )

    def all(self) -> list[Run]:
        """Return every run, the oldest first."""
        return [run_of(row) for row in self._database.read("SELECT * FROM runs ORDER BY started_at, run_id")]

    def own(self) -> list[Run]:
        """Return the runs of this home's clusters, the oldest first: not those that were imported."""
        statement = "SELECT * FROM runs WHERE cluster_id IN (SELECT cluster_id FROM clusters)"
        return [run_of(row) for row in self._database.read(f"{statement} ORDER BY started_at, run_id")]

    def of_cluster(self, cluster_id: str) -> list[Run]:
        """Return a cluster's runs, the oldest first."""
        statement = "SELECT * FROM runs WHERE cluster_id = ? ORDER BY started_at, run_id"
        return [run_of(row) for row in self._database.read(statement, cluster_id)]

    def stored_bytes(self, run_id: str) -> int:
        """Return how many bytes of a run's records are stored: where to read on after a broken connection."""
        rows = self._database.read("SELECT records_bytes FROM runs WHERE run_id = ?", run_id)
        return int(rows[0]["records_bytes"]) if rows else 0

    def add_records(self, run_id: str, position: int, content: bytes) -> list[dict[str, Any]]:
        """Store the whole lines of a run's records from byte `position` on; once, however often they come.

        A line that is still being written, at the end, is left to the next call.

        Returns:
            The records that were new, parsed.
        """
        new: list[dict[str, Any]] = []
        with self._database.transaction():
            known = self.stored_bytes(run_id)
            for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                record = parse_record(text)
                if position >= known and record is not None:
                    row = {"run_id": run_id, "position": position, "kind": record["record"], "line": text}
                    self._database.insert("records", row)
                    if record["record"] == "result":
                        index_result(self._database, run_id, position, record)
                    new.append(record)
                position += len(line)
            self._database.write(
                "UPDATE runs SET records_bytes = max(records_bytes, ?) WHERE run_id = ?", position, run_id
            )
        return new

    def lines(self, run_id: str, kind: str) -> list[str]:
        """Return the raw records of a kind, in the order in which they were written."""
        statement = "SELECT line FROM records WHERE run_id = ? AND kind = ? ORDER BY position"
        return [row["line"] for row in self._database.read(statement, run_id, kind)]

    def all_lines(self, run_id: str) -> list[str]:
        """Return every raw record of a run, in the order in which they were written."""
        statement = "SELECT line FROM records WHERE run_id = ? ORDER BY position"
        return [row["line"] for row in self._database.read(statement, run_id)]

    def put_prices(self, run_id: str, prices: Sequence[Price]) -> None:
        """Remember what an hour of a run's instance type costs, a price a market."""
        with self._database.transaction():
            for price in prices:
                row = {
                    "run_id": run_id,
                    "market": price.market,
                    "zone": price.zone,
                    "hourly_usd": price.hourly_usd,
                    "as_of": price.as_of,
                    "source": price.source,
                }
                self._database.insert("run_prices", row, replace=True)


def index_result(database: Database, run_id: str, position: int, record: Mapping[str, Any]) -> None:
    """Store what a result is of, by which reports find the newest of each."""
    database.write(
        "INSERT OR REPLACE INTO results SELECT run_id, ?, workload, instance_type, cloud, ?, ?, started_at"
        " FROM runs WHERE run_id = ?",
        position,
        str(record.get("case", "")),
        str(record.get("setting", "")),
        run_id,
    )


def run_of(row: sqlite3.Row) -> Run:
    """Read a row of the table runs."""
    return Run(
        run_id=row["run_id"],
        cluster_id=row["cluster_id"],
        cluster_name=row["cluster_name"],
        instance_id=row["instance_id"],
        workload=row["workload"],
        cloud=row["cloud"],
        region=row["region"],
        zone=row["zone"],
        instance_type=row["instance_type"],
        market=Market(row["market"]),
        image_id=row["image_id"],
        hourly_usd=None if row["hourly_usd"] is None else Decimal(row["hourly_usd"]),
        price_source=row["price_source"],
        price_as_of=optional_time(row["price_as_of"]),
        state=RunState(row["state"]),
        started_at=datetime.fromisoformat(row["started_at"]),
        ended_at=optional_time(row["ended_at"]),
        exit_status=row["exit_status"],
        setup_at=optional_time(row["setup_at"]),
    )
