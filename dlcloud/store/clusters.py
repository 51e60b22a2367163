"""Stored clusters: their recipe, their instances, the intents of what was done to them, and whole benches.

An intent is stored before anything is requested that may cost money, and ended with its outcome. A killed
command leaves an intent without one, by which the next command knows what may exist, and completes it.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from dlcloud.analysis.result import Run
from dlcloud.model.cluster import Cluster, ClusterState, Intent, Member
from dlcloud.model.errors import StoreError
from dlcloud.model.instance import Instance
from dlcloud.scheduling.outlook import Outlook, read_outlook
from dlcloud.store.database import Database, read_row

KEEP_FREE = "keep free"
"""Intent recorded when a training is to keep reserved instances free; its detail is how many."""
PLACEMENT_GROUP = "placement group"
"""Intent recorded before a cluster's own placement group is made."""
CANCEL = "cancel"
"""A run is stopped, and the cluster is to stay up: what it has launched is not terminated for that."""

INTERRUPTION = "interruption"
"""Recorded when an instance was replaced; its detail is JSON: the seconds of lost work, and their USD."""

RESIZE = "resize"
"""Intent recorded when a cluster is given another size, which is its detail."""

HAND_OVER = "hand-over"
"""Intent recorded when a cluster's control is handed over to an instance, which is its detail."""

SUCCESSION = "succession"
"""Intent recorded when an instance takes the control of its cluster over; its detail is the term, from 1."""

FETCH = "fetch"
"""Intent recorded while results are copied back from a detached cluster's controller."""

DEADLINE = "deadline"
"""Intent recorded when a training with a deadline begins; its detail is the deadline, as ISO 8601."""

DEADLINE_SET = "set"
"""The outcome of that intent until the training ends; then it is "met" or "missed"."""

DECISION = "deadline decision"
"""Intent recorded with each decision for a deadline that changes instances, which is its detail, as JSON."""

OUTLOOK = "deadline outlook"
"""Intent whose outcome is the newest outlook of a training with a deadline, as JSON."""

BATCH = "batch"
"""Intent recorded before a cluster's compute environment, queue and job definition of AWS Batch are made."""

BATCH_JOB = "batch job"
"""Intent recorded before an array of trials is submitted; its detail is the name, its outcome the id."""

STORAGE_ROLE = "storage role"
"""Intent recorded before the role for a cluster's buckets is made."""

REFUSED = "refused"
"""The outcome of an intent that left nothing behind."""

GROUP = "security group"
"""Intent recorded before the cluster's security group is created."""

LAUNCHED = "launched"
"""The outcome of a request that gave instances, or a fleet."""

IN_CHARGE = "in charge"
"""The outcome of a complete hand-over."""


def read_ids(text: str) -> tuple[str, ...]:
    """Return the ids in a column.

    Raises:
        StoreError: It is no JSON list of texts.
    """
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        raise StoreError("the store holds ids that cannot be read", "restore store.sqlite from a backup")
    return tuple(ids)


class Clusters:
    """The tables clusters, members and intents.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def postpone_failures(self) -> AbstractContextManager[None]:
        """Let nothing within the block fail because nothing can be stored; see `Database`."""
        return self._database.postpone_failures()

    def add(self, cluster: Cluster) -> None:
        self._database.insert("clusters", asdict(cluster))

    def set_state(self, cluster_id: str, state: ClusterState, ended_at: datetime | None = None) -> None:
        self._database.write(
            "UPDATE clusters SET state = ?, ended_at = coalesce(?, ended_at) WHERE cluster_id = ?",
            state,
            ended_at.isoformat() if ended_at else None,
            cluster_id,
        )

    def set_disk(self, cluster_id: str, disk_gib: int) -> None:
        """Store the size of the volumes as launched."""
        self._database.write("UPDATE clusters SET disk_gib = ? WHERE cluster_id = ?", disk_gib, cluster_id)

    def set_account(self, cluster_id: str, *, account: str, partition: str, aws_profile: str) -> None:
        """Store the account that a cluster belongs to; it never changes."""
        self._database.write(
            "UPDATE clusters SET account = ?, partition = ?, aws_profile = ?"
            " WHERE cluster_id = ? AND account = ''",
            account,
            partition,
            aws_profile,
            cluster_id,
        )

    def all(self) -> list[Cluster]:
        """Return every cluster, the oldest first."""
        rows = self._database.read("SELECT * FROM clusters ORDER BY created_at")
        return [read_row(Cluster, row) for row in rows]

    def active(self) -> list[Cluster]:
        """Return the clusters that are not down, the oldest first."""
        statement = "SELECT * FROM clusters WHERE state != ? ORDER BY created_at"
        return [read_row(Cluster, row) for row in self._database.read(statement, ClusterState.DOWN)]

    def find(self, name: str) -> Cluster | None:
        """Return the cluster of a name or id: an active one before one that is down, then the newest."""
        rows = self._database.read(
            "SELECT * FROM clusters WHERE name = ? OR cluster_id = ?"
            " ORDER BY state = ?, created_at DESC LIMIT 1",
            name,
            name,
            ClusterState.DOWN,
        )
        return read_row(Cluster, rows[0]) if rows else None

    def put_members(self, cluster_id: str, members: Sequence[Member]) -> None:
        """Store instances as last seen; an end, once stored, stays."""
        with self._database.transaction():
            for member in members:
                self._put_member(cluster_id, member)

    def members(self, cluster_id: str) -> list[Member]:
        """Return the instances of a cluster, those that ended included, in the order of their launch."""
        statement = "SELECT * FROM members WHERE cluster_id = ? ORDER BY launched_at, instance_id"
        return [_member(row) for row in self._database.read(statement, cluster_id)]

    def begin_intent(
        self, cluster_id: str, action: str, detail: str, now: datetime, instance_ids: Sequence[str] = ()
    ) -> int:
        """Record an action before it may cost money; return the intent's number.

        `instance_ids` are those of the instances that it ends.
        """
        row = {"cluster_id": cluster_id, "action": action, "detail": detail, "begun_at": now}
        return self._database.insert("intents", {**row, "instance_ids": json.dumps(list(instance_ids))})

    def begin_launch(self, cluster_id: str, action: str, detail: str, now: datetime) -> int | None:
        """Record a request for instances before it is sent; None once the cluster is being terminated.

        What terminates the cluster has stored that first, and sees every request that was recorded before.
        """
        with self._database.transaction():
            statement = "SELECT 1 FROM clusters WHERE cluster_id = ? AND state IN (?, ?)"
            if self._database.read(statement, cluster_id, ClusterState.STOPPING, ClusterState.DOWN):
                return None
            return self.begin_intent(cluster_id, action, detail, now)

    def describe_intent(self, intent_id: int, detail: str) -> None:
        """Replace the detail of an intent, once more is known."""
        self._database.write("UPDATE intents SET detail = ? WHERE intent_id = ?", detail, intent_id)

    def end_intent(self, intent_id: int, outcome: str, now: datetime) -> None:
        self._database.write(
            "UPDATE intents SET outcome = ?, ended_at = ? WHERE intent_id = ?",
            outcome,
            now.isoformat(),
            intent_id,
        )

    def end_launch(self, intent_id: int, fleet_id: str, instance_ids: Sequence[str], now: datetime) -> None:
        """Record what a request for instances launched; no fleet and no instances: it was refused."""
        outcome = LAUNCHED if fleet_id or instance_ids else REFUSED
        with self._database.transaction():
            self._database.write(
                "UPDATE intents SET fleet_id = ?, instance_ids = ? WHERE intent_id = ?",
                fleet_id,
                json.dumps(list(instance_ids)),
                intent_id,
            )
            self.end_intent(intent_id, outcome, now)

    def intents(self, cluster_id: str, action: str) -> list[Intent]:
        """Return a cluster's intents of one action, the oldest first."""
        statement = "SELECT * FROM intents WHERE cluster_id = ? AND action = ? ORDER BY intent_id"
        rows = self._database.read(statement, cluster_id, action)
        return [read_row(Intent, row, instance_ids=read_ids(row["instance_ids"])) for row in rows]

    def keep_free(self, cluster_id: str) -> int | None:
        """Return how many reserved instances the last resize said to keep free; None: the recipe's."""
        intents = self.intents(cluster_id, KEEP_FREE)
        return int(intents[-1].detail) if intents else None

    def size(self, cluster_id: str) -> int | None:
        """Return the size of the last resize; None: the recipe's."""
        resizes = self.intents(cluster_id, RESIZE)
        return int(resizes[-1].detail) if resizes else None

    def outlook(self, cluster_id: str) -> Outlook | None:
        """Return what the controller of a training with a deadline expected last; None after its end."""
        deadlines, stored = self.intents(cluster_id, DEADLINE), self.intents(cluster_id, OUTLOOK)
        is_open = bool(deadlines) and deadlines[-1].outcome == DEADLINE_SET
        return read_outlook(stored[-1].outcome) if is_open and stored else None

    def decisions(self, cluster_id: str) -> list[Outlook]:
        """Return the decisions for a deadline that changed instances, the oldest first."""
        stored = (read_outlook(intent.detail) for intent in self.intents(cluster_id, DECISION))
        return [outlook for outlook in stored if outlook is not None]

    def controller_instance_id(self, cluster_id: str) -> str | None:
        """Return the instance that controls a detached cluster; None for a cluster controlled from here."""
        hand_over = self.last_hand_over(cluster_id)
        return hand_over.detail if hand_over is not None and hand_over.outcome == IN_CHARGE else None

    def last_hand_over(self, cluster_id: str) -> Intent | None:
        return next(reversed(self.intents(cluster_id, HAND_OVER)), None)

    def has_intents(self, cluster_id: str) -> bool:
        """True if anything was ever requested for this cluster's instances."""
        statement = "SELECT 1 FROM intents WHERE cluster_id = ? AND action != ? LIMIT 1"
        return bool(self._database.read(statement, cluster_id, GROUP))

    def _put_member(self, cluster_id: str, member: Member) -> None:
        instance = member.instance
        stored = self._database.read(
            "SELECT ended_at, interrupted FROM members WHERE instance_id = ?", instance.instance_id
        )
        row = {
            "instance_id": instance.instance_id,
            "cluster_id": cluster_id,
            "instance_type": instance.instance_type,
            "market": instance.market,
            "zone": instance.zone,
            "state": instance.state,
            "host": instance.host,
            "ssh_port": instance.ssh_port,
            "hourly_usd": member.hourly_usd,
            "price_source": member.price_source,
            "price_as_of": member.price_as_of,
            "launched_at": instance.launched_at,
            "ended_at": stored[0]["ended_at"] if stored and stored[0]["ended_at"] else member.ended_at,
            "interrupted": int(member.interrupted or bool(stored and stored[0]["interrupted"])),
        }
        self._database.insert("members", row, replace=True)


def _member(row: sqlite3.Row) -> Member:
    # The column ended_at is the member's.
    return read_row(Member, row, instance=read_row(Instance, row, state_reason="", ended_at=None))


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
