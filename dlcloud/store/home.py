"""One dlcloud home: the path of each of its files, and what its commands remember together.

Nothing else in dlcloud puts a path together. All of it is readable by the user only.
"""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import Clusters
from dlcloud.store.runs import Runs
from dlcloud.system.files import FileLock, write_file


@dataclass(frozen=True, slots=True)
class Paths:
    """The files below one home (`~/.dlcloud`, or DLCLOUD_HOME), readable by the user only.

    Args:
        home: The folder; created, mode 0700, when first needed.
    """

    home: Path

    def make_folder(self, folder: Path) -> Path:
        """Create home or a folder below it, mode 0700, if it is missing, and return it.

        Raises:
            StoreError: The folder cannot be created.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # One by one: `parents=True` would create parents with the default mode.
            for part in [*reversed(folder.relative_to(self.home).parents), folder.relative_to(self.home)]:
                (self.home / part).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            hint = "set DLCLOUD_HOME to a folder that can be written"
            raise StoreError(f"cannot create the folder {folder}: {error.strerror}", hint) from error
        return folder

    @property
    def database(self) -> Path:
        return self.home / "store.sqlite"

    @property
    def home_id(self) -> Path:
        """The id of this home, which its clusters carry."""
        return self.home / "home-id"

    @property
    def budget(self) -> Path:
        """This home's part of the limit of a month, where that is not shared."""
        return self.home / "budget.json"

    @property
    def budget_lock(self) -> Path:
        """Held while that file is changed."""
        return self.home / "budget.lock"

    @property
    def budget_notices(self) -> Path:
        """The largest share of the limit that was notified of, by month."""
        return self.home / "budget-notices.json"

    @property
    def local_site(self) -> Path:
        return self.home / "local"

    @property
    def locks(self) -> Path:
        """The packages that uv has pinned, by what was asked for."""
        return self.home / "locks"

    @property
    def experiments(self) -> Path:
        """What experiments were made of, by their digests."""
        return self.home / "experiments"

    @property
    def cache(self) -> Path:
        """Files that can be created again."""
        return self.home / "cache"

    @property
    def logs(self) -> Path:
        """One diagnostic log per command."""
        return self.home / "logs"

    def cluster(self, cluster_id: str) -> Path:
        return self.home / "clusters" / cluster_id

    def cluster_folders(self) -> list[Path]:
        """Return the folders of all clusters, also of those that are not in the store."""
        folder = self.home / "clusters"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def key(self, cluster_id: str) -> Path:
        """The private SSH key."""
        return self.cluster(cluster_id) / "key"

    def known_hosts(self, cluster_id: str) -> Path:
        """The pinned host keys."""
        return self.cluster(cluster_id) / "known_hosts"

    def host_secret(self, cluster_id: str) -> Path:
        """The one-time secret by which instances prove their host keys."""
        return self.cluster(cluster_id) / "host-secret"

    def user_data(self, cluster_id: str, life_minutes: int) -> Path:
        """User data for instances with a maximum lifetime."""
        return self.cluster(cluster_id) / f"user-data-{life_minutes}"

    @property
    def claims_lock(self) -> Path:
        """Locked while a command looks for its cluster, so that no two create one of the same name."""
        return self.home / "claims.lock"

    def cluster_lock(self, cluster_id: str) -> Path:
        """Locked by the one command in charge of a cluster."""
        return self.cluster(cluster_id) / "lock"

    def in_charge(self, cluster_id: str) -> Path:
        """Written by the controller on an instance when it is in charge."""
        return self.cluster(cluster_id) / "in-charge"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def run(self, run_id: str) -> Path:
        """The folder of a run's fetched files."""
        return self.runs / run_id

    def run_log(self, run_id: str) -> Path:
        """The output of a run's program."""
        return self.run(run_id) / "log"

    def run_files(self, run_id: str) -> Path:
        """The folder of files that the recipe keeps."""
        return self.run(run_id) / "files"

    @property
    def ssh_config(self) -> Path:
        """What `dlcloud ssh --config` writes."""
        return self.home / "ssh_config"


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


def is_run_of(cluster_name: str, run_id: str) -> bool:
    """True if a run's id is derived from the name of this cluster, as `launch.remote_jobs` derives them."""
    return re.fullmatch(re.escape(cluster_name) + "-[0-9a-f]{8}", run_id) is not None
