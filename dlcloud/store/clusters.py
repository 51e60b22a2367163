"""What is remembered of clusters: their recipe, their instances, and what was about to be done to them."""

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal

from dlcloud.core.cluster import Cluster, ClusterState, Intent, Member
from dlcloud.core.instance import Instance, InstanceState, Market
from dlcloud.store.database import Database, optional_time

RESIZE = "resize"
"""The name of the intent that says which size a cluster was given."""

HAND_OVER = "hand-over"
"""The name of the intent that says to which instance a cluster's control is given; its detail names it."""

FETCH = "fetch"
"""The name of the intent that says that what an instance knew of its cluster is being brought home."""

IN_CHARGE = "in charge"
"""The outcome of a hand-over that is complete."""


class Clusters:
    """The tables clusters, members and intents.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, cluster: Cluster) -> None:
        """Remember a new cluster."""
        self._database.insert("clusters", asdict(cluster))

    def set_state(self, cluster_id: str, state: ClusterState, ended_at: datetime | None = None) -> None:
        """Remember where a cluster stands now."""
        self._database.write(
            "UPDATE clusters SET state = ?, ended_at = coalesce(?, ended_at) WHERE cluster_id = ?",
            state,
            ended_at.isoformat() if ended_at else None,
            cluster_id,
        )

    def all(self) -> list[Cluster]:
        """Return every cluster, the oldest first."""
        return [_cluster(row) for row in self._database.read("SELECT * FROM clusters ORDER BY created_at")]

    def active(self) -> list[Cluster]:
        """Return the clusters that are not down, the oldest first."""
        statement = "SELECT * FROM clusters WHERE state != ? ORDER BY created_at"
        return [_cluster(row) for row in self._database.read(statement, ClusterState.DOWN)]

    def find(self, name: str) -> Cluster | None:
        """Return the cluster of that name or id: an active one before one that is down, then the newest."""
        rows = self._database.read(
            "SELECT * FROM clusters WHERE name = ? OR cluster_id = ?"
            " ORDER BY state = ?, created_at DESC LIMIT 1",
            name,
            name,
            ClusterState.DOWN,
        )
        return _cluster(rows[0]) if rows else None

    def put_members(self, cluster_id: str, members: Sequence[Member]) -> None:
        """Remember instances as they were last seen; an end, once known, stays."""
        with self._database.transaction():
            for member in members:
                self._put_member(cluster_id, member)

    def members(self, cluster_id: str) -> list[Member]:
        """Return the instances of a cluster, those that ended included, in the order of their launch."""
        statement = "SELECT * FROM members WHERE cluster_id = ? ORDER BY launched_at, instance_id"
        return [_member(row) for row in self._database.read(statement, cluster_id)]

    def begin_intent(self, cluster_id: str, action: str, detail: str, now: datetime) -> int:
        """Remember what is about to be done, before it may cost money; returns the intent's number."""
        row = {"cluster_id": cluster_id, "action": action, "detail": detail, "begun_at": now}
        return self._database.insert("intents", row)

    def end_intent(self, intent_id: int, outcome: str, now: datetime) -> None:
        """Remember how it ended."""
        self._database.write(
            "UPDATE intents SET outcome = ?, ended_at = ? WHERE intent_id = ?",
            outcome,
            now.isoformat(),
            intent_id,
        )

    def open_intents(self, cluster_id: str) -> list[str]:
        """Return what was begun for a cluster and of which no end is known."""
        statement = "SELECT action FROM intents WHERE cluster_id = ? AND outcome IS NULL ORDER BY intent_id"
        return [row["action"] for row in self._database.read(statement, cluster_id)]

    def intents(self, cluster_id: str, action: str) -> list[Intent]:
        """Return what was begun of a kind for a cluster, the oldest first."""
        statement = "SELECT * FROM intents WHERE cluster_id = ? AND action = ? ORDER BY intent_id"
        return [_intent(row) for row in self._database.read(statement, cluster_id, action)]

    def ended_intents(self, cluster_id: str, action: str) -> int:
        """Return how many intents of a kind a cluster has whose end is known."""
        statement = "SELECT count(*) FROM intents WHERE cluster_id = ? AND action = ? AND outcome IS NOT NULL"
        return int(self._database.read(statement, cluster_id, action)[0][0])

    def size(self, cluster_id: str) -> int | None:
        """Return how many instances were last asked for by a resize; None: as many as the recipe says."""
        statement = (
            "SELECT detail FROM intents WHERE cluster_id = ? AND action = ? ORDER BY intent_id DESC LIMIT 1"
        )
        rows = self._database.read(statement, cluster_id, RESIZE)
        return int(rows[0]["detail"]) if rows else None

    def controller(self, cluster_id: str) -> str | None:
        """Return the instance that a cluster was handed over to; None where it is controlled from here."""
        newest = self.hand_over(cluster_id)
        return newest.detail if newest is not None and newest.outcome == IN_CHARGE else None

    def hand_over(self, cluster_id: str) -> Intent | None:
        """Return the last hand-over of a cluster that was begun."""
        return next(reversed(self.intents(cluster_id, HAND_OVER)), None)

    def known_to_cloud(self, cluster_id: str) -> bool:
        """Tell whether anything was ever asked for in this cluster's name."""
        return bool(self._database.read("SELECT 1 FROM intents WHERE cluster_id = ? LIMIT 1", cluster_id))

    def _put_member(self, cluster_id: str, member: Member) -> None:
        instance = member.instance
        known = self._database.read(
            "SELECT ended_at FROM members WHERE instance_id = ?", instance.instance_id
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
            "ended_at": known[0]["ended_at"] if known and known[0]["ended_at"] else member.ended_at,
        }
        self._database.insert("members", row, replace=True)


def _intent(row: sqlite3.Row) -> Intent:
    return Intent(
        intent_id=row["intent_id"],
        action=row["action"],
        detail=row["detail"],
        begun_at=datetime.fromisoformat(row["begun_at"]),
        outcome=row["outcome"],
    )


def _cluster(row: sqlite3.Row) -> Cluster:
    return Cluster(
        cluster_id=row["cluster_id"],
        name=row["name"],
        cloud=row["cloud"],
        region=row["region"],
        recipe_text=row["recipe_text"],
        recipe_path=row["recipe_path"],
        recipe_hash=row["recipe_hash"],
        state=ClusterState(row["state"]),
        user=row["user"],
        disk_gib=row["disk_gib"],
        created_at=datetime.fromisoformat(row["created_at"]),
        ended_at=optional_time(row["ended_at"]),
    )


def _member(row: sqlite3.Row) -> Member:
    instance = Instance(
        instance_id=row["instance_id"],
        instance_type=row["instance_type"],
        market=Market(row["market"]),
        zone=row["zone"],
        state=InstanceState(row["state"]),
        state_reason="",
        launched_at=datetime.fromisoformat(row["launched_at"]),
        host=row["host"],
        ssh_port=row["ssh_port"],
    )
    return Member(
        instance=instance,
        hourly_usd=None if row["hourly_usd"] is None else Decimal(row["hourly_usd"]),
        price_source=row["price_source"],
        price_as_of=optional_time(row["price_as_of"]),
        ended_at=optional_time(row["ended_at"]),
    )
