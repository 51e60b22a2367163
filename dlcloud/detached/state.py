"""What a store knows of one cluster: copied to the instance that controls it next, and imported from there.

The copy for the instance is made row by row. What comes back was written on an instance where other programs
ran, too: it is read through the same checks as an import.
"""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import StoreError
from dlcloud.recipe.document import LONGEST_TEXT
from dlcloud.store.clusters import FETCH, HAND_OVER, IN_CHARGE, RESIZE, Clusters, read_ids
from dlcloud.store.database import Database
from dlcloud.store.measurements import Selection
from dlcloud.store.runs import Runs
from dlcloud.store.transfer import RunTransfer

_OF_CLUSTER = ("members", "intents", "runs")
_OF_RUN = ("records", "results", "run_prices")
_COPIED = "cluster_id = ? OR (experiment = ? AND experiment <> '')"
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{1,32}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SIZE = re.compile(r"[0-9]{1,4}")
MOST_NAMED = 5


def copy_cluster(source: Database, target: Database, cluster: Cluster, experiment: str = "") -> None:
    """Copy all rows of a cluster to an empty store, with `cluster` as the target is to have it.

    Byte positions of records stay, so that runs are followed on. The runs of an experiment, named by its
    digest, come along from all clusters: their trials are not run again.
    """
    with target.transaction():
        Clusters(target).add(cluster)
        for table in _OF_CLUSTER:
            for row in source.read(f"SELECT * FROM {table} WHERE cluster_id = ?", cluster.cluster_id):
                # The instance is not to hand the cluster over again.
                if table != "intents" or row["action"] != HAND_OVER:
                    target.insert(table, dict(row))
        if experiment:
            statement = "SELECT * FROM runs WHERE experiment = ? AND cluster_id <> ?"
            for row in source.read(statement, experiment, cluster.cluster_id):
                target.insert("runs", dict(row))
        for table in _OF_RUN:
            statement = f"SELECT * FROM {table} WHERE run_id IN (SELECT run_id FROM runs WHERE {_COPIED})"
            for row in source.read(statement, cluster.cluster_id, experiment):
                target.insert(table, dict(row))


def import_cluster(
    fetched: Database,
    home: Database,
    cluster_id: str,
    *,
    controller_instance_id: str,
    now: datetime,
    profile: str = "",
) -> Cluster:
    """Store what a copy of the controller's store knows of a cluster, once or often.

    Runs that continue there count as lost; the copy is changed. `profile` names the credentials by which the
    instance was found: what it says of credentials and tags is not used.

    Returns:
        The cluster, as our own store knows it.

    Raises:
        StoreError: The copy does not know it, or states what cannot be true.
        RecipeError: Its runs cannot be read.
    """
    cluster = check_copy(fetched, home, cluster_id)
    runs = Runs(fetched)
    for run in runs.of_cluster(cluster_id):
        if run.ended_at is None:
            runs.end_lost(run.run_id, now)
    lines = RunTransfer(fetched).export_lines(
        Selection(run_ids=run_ids(fetched, cluster_id) or [""]), samples=True, commands=True
    )
    with home.transaction():
        clusters = Clusters(home)
        earlier = clusters.find(cluster_id)
        if earlier is None:
            clusters.add(
                replace(
                    cluster,
                    profile=profile,
                    own_tags="",
                    network="",
                    account="",
                    partition="",
                    aws_profile="",
                )
            )
        if clusters.last_hand_over(cluster_id) is None:
            # The command that destroys the cluster learns by it that there is a role to delete.
            intent_id = clusters.begin_intent(cluster_id, HAND_OVER, controller_instance_id, now)
            clusters.end_intent(intent_id, IN_CHARGE, now)
        clusters.put_members(cluster_id, Clusters(fetched).members(cluster_id))
        _add_intents(fetched, home, cluster_id)
        intent_id = clusters.begin_intent(cluster_id, FETCH, controller_instance_id, now)
        clusters.end_intent(intent_id, "downloaded", now)
        RunTransfer(home).import_lines([("the instance's store", (line.encode() for line in lines))])
    return earlier or cluster


def check_copy(fetched: Database, home: Database, cluster_id: str) -> Cluster:
    """Return the cluster that a copy is of, if all it states is bound to that cluster.

    Its instance may have been taken over: what it says of other clusters, or under their names, is not used.

    Raises:
        StoreError: It states what cannot be true.
    """
    cluster = Clusters(fetched).find(cluster_id)
    if cluster is None or cluster.cluster_id != cluster_id:
        raise StoreError(f"the fetched store has no cluster {cluster_id}")
    _refuse_nonsense(fetched, cluster)
    _refuse_others(fetched, home, cluster)
    return cluster


def run_ids(database: Database, cluster_id: str) -> list[str]:
    """Return the ids of a cluster's runs, each fit to be a folder's name.

    Raises:
        StoreError: One is not.
    """
    ids = [run.run_id for run in Runs(database).of_cluster(cluster_id)]
    if not all(_RUN_ID.fullmatch(run_id) for run_id in ids):
        raise StoreError(f"the fetched store has an invalid run id for cluster {cluster_id}")
    return ids


def _refuse_nonsense(fetched: Database, cluster: Cluster) -> None:
    ids = [member.instance.instance_id for member in Clusters(fetched).members(cluster.cluster_id)]
    words = (cluster.name, cluster.region, cluster.user)
    sizes = [intent.detail for intent in Clusters(fetched).intents(cluster.cluster_id, RESIZE)]
    if (
        not all(_INSTANCE_ID.fullmatch(instance_id) for instance_id in ids)
        or not all(_RUN_ID.fullmatch(word) for word in words)
        or not all(_SIZE.fullmatch(size) for size in sizes)
        or not cluster.recipe_path.isprintable()
        or cluster.cloud not in {"aws", "local"}
        or len(cluster.recipe_text) > LONGEST_TEXT
    ):
        raise StoreError(f"the fetched store has invalid values for cluster {cluster.cluster_id}")


def _refuse_others(fetched: Database, home: Database, cluster: Cluster) -> None:
    """Refuse instances, runs and fleets of other clusters of this home, and another name of a known one."""
    stored = Clusters(home).find(cluster.cluster_id)
    members = {row["instance_id"] for row in fetched.read("SELECT instance_id FROM members")}
    select = "SELECT fleet_id, instance_ids FROM intents"
    named = _named_by(fetched.read(select)) | members
    elsewhere = _named_by(home.read(f"{select} WHERE cluster_id != ?", cluster.cluster_id))
    rows = home.read("SELECT instance_id FROM members WHERE cluster_id != ?", cluster.cluster_id)
    elsewhere |= {row["instance_id"] for row in rows}
    # Of an experiment, the copy has runs of other clusters, too: they stay there.
    own = "SELECT run_id FROM runs WHERE cluster_id = ?"
    runs = {row["run_id"] for row in fetched.read(own, cluster.cluster_id)}
    foreign = home.read("SELECT run_id FROM runs WHERE cluster_id != ?", cluster.cluster_id)
    stray = named & elsewhere | runs & {row["run_id"] for row in foreign}
    stray |= {run_id for run_id in runs if not run_id.startswith(f"{cluster.name}-")}
    if stored is not None and stored.name != cluster.name:
        stray.add(cluster.name)
    if stray:
        message = f"the fetched store of {cluster.cluster_id} states what belongs to others"
        raise StoreError(
            f"{message}: {', '.join(sorted(map(repr, stray))[:MOST_NAMED])}; nothing of it is used"
        )


def _named_by(intents: Sequence[sqlite3.Row]) -> set[str]:
    """Return the ids of all that intents launched, or end."""
    fleets = {row["fleet_id"] for row in intents if row["fleet_id"]}
    return fleets.union(*(read_ids(row["instance_ids"]) for row in intents))


def _add_intents(fetched: Database, home: Database, cluster_id: str) -> None:
    """Add what was begun there: by it `down` finds fleets that never had an instance."""
    columns = "action, detail, begun_at, outcome, ended_at, fleet_id, instance_ids"
    select = f"SELECT {columns} FROM intents WHERE cluster_id = ?"
    present = {(row["action"], row["begun_at"]) for row in home.read(select, cluster_id)}
    for row in fetched.read(f"{select} ORDER BY intent_id", cluster_id):
        if (row["action"], row["begun_at"]) not in present:
            home.insert("intents", {"cluster_id": cluster_id, **dict(row)})
