"""What the commands of one home share."""

import re
import secrets
from dataclasses import dataclass

from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import Clusters
from dlcloud.store.paths import Paths
from dlcloud.store.runs import Runs
from dlcloud.system.files import FileLock, write_file


def home_id(paths: Paths) -> str:
    """Return what distinguishes this home from others, drawn when it is first asked for.

    Raises:
        StoreError: It can be neither read nor written.
    """
    path = paths.home_id
    try:
        with FileLock(paths.claims_lock):
            if not path.exists():
                write_file(path, secrets.token_hex(6))
            return path.read_text().strip()
    except OSError as error:
        raise StoreError(f"cannot keep {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The clusters and runs that a home remembers, and the paths of its files."""

    clusters: Clusters
    runs: Runs
    paths: Paths

    def find_cluster(self, name: str) -> Cluster | None:
        """Return the cluster that a name means, or that of a run or instance; without one, the only one."""
        active = self.clusters.active()
        if not name:
            return active[0] if len(active) == 1 else None
        cluster = self.clusters.find(name) or next((c for c in active if is_run_of(c.name, name)), None)
        alike = [cluster for cluster in active if cluster.name.startswith(name)]
        if cluster is not None or len(alike) == 1:
            return cluster or alike[0]
        run = next((run for run in self.runs.own() if name in {run.run_id, run.instance_id}), None)
        return None if run is None else self.clusters.find(run.cluster_id)

    def controller_of(self, cluster: Cluster) -> str | None:
        """Return the instance that controls a cluster; None if this home does, or it is down."""
        is_down = cluster.state is ClusterState.DOWN
        return None if is_down else self.clusters.controller_instance_id(cluster.cluster_id)


def is_run_of(cluster_name: str, run_id: str) -> bool:
    """True if a run's id is derived from the name of this cluster, as `launch.remote_jobs` derives them."""
    return re.fullmatch(re.escape(cluster_name) + "-[0-9a-f]{8}", run_id) is not None
