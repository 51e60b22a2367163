"""A cluster as its tags tell of it: who controls it, and how to be sure that it is the one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlcloud.core.cluster import CLUSTER_TAG, CONTROLLER_TAG, HOST_KEY_TAG, MANAGED_TAG, NAME_TAG
from dlcloud.core.instance import Instance

_NAME_PREFIX = "dlcloud "


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedCluster:
    """A cluster that one of its own instances controls.

    Args:
        cluster_id: The cluster's.
        name: What its launcher called it.
        cloud: `aws` or `local`.
        region: Where it is.
        instance: The one that controls it.
        user: Who logs in there.
        host_key: The SHA256 fingerprint of that instance's host key.
    """

    cluster_id: str
    name: str
    cloud: str
    region: str
    instance: Instance
    user: str
    host_key: str

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags that everything of the cluster carries."""
        kept = {MANAGED_TAG, CLUSTER_TAG, NAME_TAG}
        return {name: value for name, value in self.instance.tags.items() if name in kept}

    def called(self, name: str) -> bool:
        """Tell whether a name means this cluster, one of its runs, or its controlling instance."""
        known = {self.name, self.cluster_id, self.instance.instance_id}
        return name in known or is_run_of(self.name, name)


def is_run_of(cluster_name: str, run_id: str) -> bool:
    """Tell whether a run's id is made of the name of this cluster, as `launch.detached` makes them."""
    return re.fullmatch(re.escape(cluster_name) + "-[0-9a-f]{8}", run_id) is not None


def controlled(instances: Iterable[Instance], *, cloud: str, region: str) -> list[DetachedCluster]:
    """Return the clusters that instances control, as far as these are up."""
    return [
        DetachedCluster(
            cluster_id=each.tags.get(CLUSTER_TAG, ""),
            name=each.tags.get(NAME_TAG, "").removeprefix(_NAME_PREFIX),
            cloud=cloud,
            region=region,
            instance=each,
            user=each.tags[CONTROLLER_TAG],
            host_key=each.tags.get(HOST_KEY_TAG, ""),
        )
        for each in instances
        if CONTROLLER_TAG in each.tags and each.alive
    ]
