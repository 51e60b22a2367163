"""What the commands of one home share."""

import secrets
from dataclasses import dataclass

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
