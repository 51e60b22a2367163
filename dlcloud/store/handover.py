"""One cluster out of a store and into another: whole, as it is, to whoever controls it next, and home again.

What goes out is copied row by row. What comes home was written on an instance where other programs ran, too:
it is read through the same checks as an import.
"""

import re
from datetime import datetime

from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import StoreError
from dlcloud.core.result import RunState
from dlcloud.store.clusters import FETCH, HAND_OVER, IN_CHARGE, Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from dlcloud.store.selection import Selection
from dlcloud.store.transfer import Exchange

_OF_CLUSTER = ("members", "intents", "runs")
_OF_RUN = ("records", "results", "run_prices")
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{1,32}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST = 1_000_000


def copy_cluster(source: Database, target: Database, cluster: Cluster) -> None:
    """Copy all that is known of a cluster; byte positions of records stay, so that runs are followed on.

    Args:
        source: Where it is known.
        target: An empty store.
        cluster: As the target is to know it.
    """
    with target.transaction():
        Clusters(target).add(cluster)
        for table in _OF_CLUSTER:
            for row in source.read(f"SELECT * FROM {table} WHERE cluster_id = ?", cluster.cluster_id):
                # Who controls it there was not told to hand it over.
                if table != "intents" or row["action"] != HAND_OVER:
                    target.insert(table, dict(row))
        for table in _OF_RUN:
            statement = (
                f"SELECT * FROM {table} WHERE run_id IN (SELECT run_id FROM runs WHERE cluster_id = ?)"
            )
            for row in source.read(statement, cluster.cluster_id):
                target.insert(table, dict(row))


def take_home(
    brought: Database, home: Database, cluster_id: str, *, controller: str, now: datetime
) -> Cluster:
    """Store what another store knows of a cluster; runs that go on there count as cut off. Once or often.

    Args:
        brought: A copy of the store of the instance that controlled it; it is changed.
        home: Our own store.
        cluster_id: Which cluster.
        controller: That instance.
        now: When.

    Returns:
        The cluster, as our own store knows it.

    Raises:
        StoreError: The copy does not know it, or what it says of it cannot be true.
        RecipeError: Its runs cannot be read.
    """
    told = Clusters(brought).find(cluster_id)
    if told is None or told.cluster_id != cluster_id:
        raise StoreError(f"what was brought home says nothing of cluster {cluster_id}")
    _refuse_nonsense(brought, told)
    runs = Runs(brought)
    for run in runs.of_cluster(cluster_id):
        if run.ended_at is None:
            runs.end(run.run_id, RunState.LOST, None, now)
    lines = Exchange(brought).lines(
        Selection(run_ids=run_ids(brought, cluster_id) or [""]), samples=True, commands=True
    )
    with home.transaction():
        ours = Clusters(home)
        known = ours.find(cluster_id)
        if known is None:
            ours.add(told)
        if ours.hand_over(cluster_id) is None:
            # By this whoever takes it down knows of its role.
            ours.end_intent(ours.begin_intent(cluster_id, HAND_OVER, controller, now), IN_CHARGE, now)
        ours.put_members(cluster_id, Clusters(brought).members(cluster_id))
        _add_intents(brought, home, cluster_id)
        ours.end_intent(ours.begin_intent(cluster_id, FETCH, controller, now), "brought home", now)
        Exchange(home).take([("the instance's store", (line.encode() for line in lines))])
    return known or told


def run_ids(database: Database, cluster_id: str) -> list[str]:
    """Return the ids of a cluster's runs, each fit to be a folder's name.

    Raises:
        StoreError: One is not.
    """
    ids = [run.run_id for run in Runs(database).of_cluster(cluster_id)]
    if not all(_RUN_ID.fullmatch(each) for each in ids):
        raise StoreError(f"what was brought home of {cluster_id} cannot be read as runs")
    return ids


def _refuse_nonsense(brought: Database, cluster: Cluster) -> None:
    members = Clusters(brought).members(cluster.cluster_id)
    strange = [
        each.instance.instance_id for each in members if not _INSTANCE_ID.fullmatch(each.instance.instance_id)
    ]
    words = (cluster.name, cluster.region, cluster.user, cluster.recipe_path)
    if strange or not all(word.isprintable() for word in words) or len(cluster.recipe_text) > _LONGEST:
        raise StoreError(f"what was brought home of {cluster.cluster_id} cannot be read as a cluster")


def _add_intents(brought: Database, home: Database, cluster_id: str) -> None:
    """Add what was begun there: by it `down` finds fleets that never had an instance."""
    select = "SELECT action, detail, begun_at, outcome, ended_at FROM intents WHERE cluster_id = ?"
    known = {(row["action"], row["begun_at"]) for row in home.read(select, cluster_id)}
    for row in brought.read(f"{select} ORDER BY intent_id", cluster_id):
        if (row["action"], row["begun_at"]) not in known:
            home.insert("intents", {"cluster_id": cluster_id, **dict(row)})
