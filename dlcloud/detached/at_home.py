"""What this home itself tells of the cluster that a name means: no cloud is asked."""

from dlcloud.detached.locate import is_run_of
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.store.home import Store


def find_at_home(store: Store, name: str) -> Cluster | None:
    """Return the cluster that a name means to this home; without one, the only one that is up."""
    clusters = store.clusters
    active = clusters.active()
    if not name:
        return active[0] if len(active) == 1 else None
    cluster = clusters.find(name) or next((c for c in active if is_run_of(c.name, name)), None)
    alike = [cluster for cluster in active if cluster.name.startswith(name)]
    if cluster is not None or len(alike) == 1:
        return cluster or alike[0]
    run = next((run for run in store.runs.own() if name in {run.run_id, run.instance_id}), None)
    return None if run is None else clusters.find(run.cluster_id)


def controller_of(store: Store, cluster: Cluster) -> str | None:
    """Return the id of the instance that controls a cluster; None if this home does, or it is down."""
    return (
        None
        if cluster.state is ClusterState.DOWN
        else store.clusters.controller_instance_id(cluster.cluster_id)
    )
