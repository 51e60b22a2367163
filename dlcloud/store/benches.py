"""Stored benches: their clusters, the cases they left out, and whether they are complete."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from dlcloud.results.result import Run
from dlcloud.store.database import Database, read_row

if TYPE_CHECKING:
    from dlcloud.planning.fit import LeftOut


class Benches:
    """The tables benches, bench_clusters and bench_left_out.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, bench_id: str, digest: str, now: datetime) -> None:
        self._database.insert("benches", {"bench_id": bench_id, "digest": digest, "begun_at": now})

    def end(self, bench_id: str, now: datetime) -> None:
        self._database.write("UPDATE benches SET ended_at = ? WHERE bench_id = ?", now.isoformat(), bench_id)

    def incomplete(self, digest: str, since: datetime) -> str | None:
        """Return the newest bench of a digest, if it is not complete and began after `since`."""
        statement = "SELECT bench_id, ended_at, begun_at FROM benches WHERE digest = ? ORDER BY begun_at DESC"
        rows = self._database.read(f"{statement} LIMIT 1", digest)
        if not rows or rows[0]["ended_at"] or datetime.fromisoformat(rows[0]["begun_at"]) < since:
            return None
        return str(rows[0]["bench_id"])

    def add_cluster(self, bench_id: str, cluster_id: str) -> None:
        self._database.insert(
            "bench_clusters", {"bench_id": bench_id, "cluster_id": cluster_id}, replace=True
        )

    def runs(self, bench_id: str) -> list[Run]:
        """Return the runs of a bench, the oldest first."""
        statement = (
            "SELECT runs.* FROM runs JOIN bench_clusters USING (cluster_id) WHERE bench_id = ?"
            " ORDER BY started_at, run_id"
        )
        return [read_row(Run, row) for row in self._database.read(statement, bench_id)]

    def put_left_out(self, bench_id: str, instance_type: str, left_out: "Iterable[LeftOut]") -> None:
        """Store the cases that were not run on a type, with the reasons."""
        with self._database.transaction():
            for case in left_out:
                row = {"bench_id": bench_id, "instance_type": instance_type, **asdict(case)}
                self._database.insert("bench_left_out", row, replace=True)

    def left_out(self, bench_id: str) -> "list[tuple[str, LeftOut]]":
        """Return the cases that were not run, with the instance type."""
        from dlcloud.planning.fit import LeftOut  # noqa: PLC0415  it imports every benchmark, and `status` the store

        statement = (
            "SELECT * FROM bench_left_out WHERE bench_id = ? ORDER BY instance_type, benchmark, setting"
        )
        return [
            (row["instance_type"], read_row(LeftOut, row)) for row in self._database.read(statement, bench_id)
        ]
