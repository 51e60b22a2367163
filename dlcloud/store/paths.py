"""Every path that dlcloud keeps on the user's machine, in one place."""

from dataclasses import dataclass
from pathlib import Path

from dlcloud.core.errors import StoreError


@dataclass(frozen=True, slots=True)
class Paths:
    """The files below one home (`~/.dlcloud`, or DLCLOUD_HOME), all for the user's eyes only.

    Args:
        home: The folder; made, mode 0700, when first needed.
    """

    home: Path

    def made(self, folder: Path) -> Path:
        """Return `folder`, which is home or lies below it, made if it is missing, for the user only.

        Raises:
            StoreError: It cannot be made.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # One by one: what `parents` makes has the default mode.
            for part in [*reversed(folder.relative_to(self.home).parents), folder.relative_to(self.home)]:
                (self.home / part).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            hint = "set DLCLOUD_HOME to a folder that can be written"
            raise StoreError(f"cannot make the folder {folder}: {error.strerror}", hint) from error
        return folder

    @property
    def database(self) -> Path:
        """The store."""
        return self.home / "store.sqlite"

    @property
    def local_site(self) -> Path:
        """The folder of the local EC2."""
        return self.home / "local"

    @property
    def cache(self) -> Path:
        """What can be made again."""
        return self.home / "cache"

    @property
    def logs(self) -> Path:
        """One diagnostic log per command."""
        return self.home / "logs"

    def cluster(self, cluster_id: str) -> Path:
        """Return a cluster's folder."""
        return self.home / "clusters" / cluster_id

    def cluster_folders(self) -> list[Path]:
        """Return the folders of all clusters, also of those that the store does not know."""
        folder = self.home / "clusters"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def key(self, cluster_id: str) -> Path:
        """Return the private SSH key of a cluster."""
        return self.cluster(cluster_id) / "key"

    def known_hosts(self, cluster_id: str) -> Path:
        """Return the file of a cluster's proven host keys."""
        return self.cluster(cluster_id) / "known_hosts"

    def host_secret(self, cluster_id: str) -> Path:
        """Return the one-time secret by which a cluster's instances prove their host keys."""
        return self.cluster(cluster_id) / "host-secret"

    def user_data(self, cluster_id: str, life_minutes: int) -> Path:
        """Return what those of a cluster's instances do at first boot that end themselves after so long."""
        return self.cluster(cluster_id) / f"user-data-{life_minutes}"

    @property
    def claims_lock(self) -> Path:
        """The file that is locked while a command looks for its cluster: no two make one of a name."""
        return self.home / "claims.lock"

    def cluster_lock(self, cluster_id: str) -> Path:
        """Return the file that the one command in charge of a cluster holds locked."""
        return self.cluster(cluster_id) / "lock"

    def in_charge(self, cluster_id: str) -> Path:
        """Return the file by which the controller on an instance tells that it is in charge."""
        return self.cluster(cluster_id) / "in-charge"

    @property
    def runs(self) -> Path:
        """The folder with a folder for each run."""
        return self.home / "runs"

    def run(self, run_id: str) -> Path:
        """Return the folder of what a run brought home."""
        return self.runs / run_id

    def run_records(self, run_id: str) -> Path:
        """Return the records of a run, byte by byte as its program wrote them."""
        return self.run(run_id) / "records.jsonl"

    def run_log(self, run_id: str) -> Path:
        """Return what a run's program printed."""
        return self.run(run_id) / "log"

    def run_files(self, run_id: str) -> Path:
        """Return the folder of files that the recipe asked to keep."""
        return self.run(run_id) / "files"
