"""Stored runs: their state, and every record that their programs wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dlcloud.analysis.result import Run, RunState, is_good_end, parse_record
from dlcloud.model.instance import Price
from dlcloud.store.database import Database, read_row


class Runs:
    """The tables runs and records.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run: Run) -> None:
        self._database.insert("runs", asdict(run))

    def add_ended(self, run: Run, records: bytes, prices: Sequence[Price]) -> None:
        """Store a run that has ended with its records, whole or not at all."""
        with self._database.transaction():
            self.add(run)
            self.add_records(run.run_id, 0, records)
            self.put_prices(run.run_id, prices)

    def end(self, run_id: str, state: RunState, exit_status: int | None, now: datetime) -> None:
        self._database.write(
            "UPDATE runs SET state = ?, exit_status = ?, ended_at = ? WHERE run_id = ?",
            state,
            exit_status,
            now.isoformat(),
            run_id,
        )

    def put_start(self, run_id: str, started_at: datetime) -> None:
        """Correct when the program of a run began, which had waited for another one."""
        with self._database.transaction():
            for table in ("runs", "results"):
                statement = f"UPDATE {table} SET started_at = ? WHERE run_id = ?"
                self._database.write(statement, started_at.isoformat(), run_id)

    def end_lost(self, run_id: str, now: datetime) -> RunState:
        """Store the end of a run whose instance is gone: as done, if its last record says so."""
        last = self._database.read(
            "SELECT line FROM records WHERE run_id = ? ORDER BY position DESC LIMIT 1", run_id
        )
        record = parse_record(last[0]["line"]) if last else None
        is_done = record is not None and is_good_end(record)
        state = RunState.DONE if is_done else RunState.LOST
        self.end(run_id, state, 0 if is_done else None, now)
        return state

    def all(self) -> list[Run]:
        """Return every run, the oldest first."""
        return self._select("TRUE")

    def own(self) -> list[Run]:
        """Return the runs of this home's clusters, without imported ones, the oldest first."""
        return self._select("cluster_id IN (SELECT cluster_id FROM clusters)")

    def of_cluster(self, cluster_id: str) -> list[Run]:
        """Return a cluster's runs, the oldest first."""
        return self._select("cluster_id = ?", cluster_id)

    def of_experiment(self, experiment: str) -> list[Run]:
        """Return the runs of an experiment on all clusters, the oldest first."""
        return self._select("experiment = ? AND experiment <> ''", experiment)

    def leave_experiment(self, experiment: str, *, failed_only: bool) -> None:
        """Take runs out of an experiment, all or those that failed: their trials are run again."""
        self._database.write(
            "UPDATE runs SET experiment = '' WHERE experiment = ? AND (state = ? OR NOT ?)",
            experiment,
            RunState.FAILED,
            int(failed_only),
        )

    def result_lines(self, experiment: str) -> dict[str, str]:
        """Return the raw last result of each run of an experiment that has one, by run id."""
        statement = (
            "SELECT run_id, line FROM records JOIN runs USING (run_id)"
            " WHERE experiment = ? AND kind = 'result' ORDER BY run_id, position"
        )
        return {row["run_id"]: row["line"] for row in self._database.read(statement, experiment)}

    def running(self, cluster_id: str, instance_id: str, workload: str) -> list[Run]:
        """Return the runs of a workload that were started on an instance and have no end yet."""
        condition = "instance_id = ? AND cluster_id = ? AND workload = ? AND state = ?"
        return self._select(condition, instance_id, cluster_id, workload, RunState.RUNNING)

    def stored_bytes(self, run_id: str) -> int:
        """Return how many bytes of a run's records are stored: from there on, they are fetched."""
        rows = self._database.read("SELECT records_bytes FROM runs WHERE run_id = ?", run_id)
        return int(rows[0]["records_bytes"]) if rows else 0

    def add_records(self, run_id: str, position: int, content: bytes) -> list[dict[str, Any]]:
        """Store the whole lines of a run's records from byte `position` on; lines already stored are skipped.

        An incomplete last line is left to the next call.

        Returns:
            The new records, parsed.
        """
        new: list[dict[str, Any]] = []
        with self._database.transaction():
            stored = self.stored_bytes(run_id)
            for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                record = parse_record(text)
                if position >= stored and record is not None:
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

    def lines_from(self, run_id: str, position: int) -> list[str]:
        """Return the raw records of a run that begin at byte `position` of its records, or later."""
        statement = "SELECT line FROM records WHERE run_id = ? AND position >= ? ORDER BY position"
        return [row["line"] for row in self._database.read(statement, run_id, position)]

    def all_lines(self, run_id: str) -> list[str]:
        """Return every raw record of a run, in the order in which they were written."""
        statement = "SELECT line FROM records WHERE run_id = ? ORDER BY position"
        return [row["line"] for row in self._database.read(statement, run_id)]

    def put_prices(self, run_id: str, prices: Sequence[Price]) -> None:
        """Store the hourly prices of a run's instance type, one per market."""
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

    def _select(self, condition: str, *values: str) -> list[Run]:
        rows = self._database.read(
            f"SELECT * FROM runs WHERE {condition} ORDER BY started_at, run_id", *values
        )
        return [read_row(Run, row) for row in rows]


def index_result(database: Database, run_id: str, position: int, record: Mapping[str, Any]) -> None:
    """Index a result by workload, type, cloud, case and setting: reports find the newest of each by them."""
    database.write(
        "INSERT OR REPLACE INTO results SELECT run_id, ?, workload, instance_type, cloud, ?, ?, started_at"
        " FROM runs WHERE run_id = ?",
        position,
        str(record.get("case", "")),
        str(record.get("setting", "")),
        run_id,
    )
