"""What the commands of one home share."""

from dataclasses import dataclass

from dlcloud.store.clusters import Clusters
from dlcloud.store.paths import Paths
from dlcloud.store.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The clusters and runs that a home remembers, and the paths of its files."""

    clusters: Clusters
    runs: Runs
    paths: Paths
