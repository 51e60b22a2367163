"""Find detached clusters by the tags of the instances that control them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dlcloud.model.account import HOME_TAG, OWNER_TAG
from dlcloud.model.cluster import (
    ACCESS_TAG,
    CLUSTER_TAG,
    CONTROLLER_TAG,
    HOST_KEY_TAG,
    MANAGED_TAG,
    NAME_TAG,
    PUBLIC,
    cluster_name,
)
from dlcloud.model.instance import Instance
from dlcloud.model.remote import Endpoint
from dlcloud.store.home import is_run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedCluster:
    """A cluster that one of its own instances controls.

    `user` logs in on that instance, and `host_key` is the SHA256 fingerprint of its host key. `profile` names
    the credentials by which it was found.
    """

    cluster_id: str
    name: str
    cloud: str
    region: str
    instance: Instance
    user: str
    host_key: str
    profile: str = ""

    @property
    def tags(self) -> dict[str, str]:
        """The tags that everything of the cluster carries."""
        shared = {MANAGED_TAG, CLUSTER_TAG, NAME_TAG, OWNER_TAG, HOME_TAG}
        return {name: value for name, value in self.instance.tags.items() if name in shared}

    @property
    def access(self) -> str:
        """How SSH reaches the instance."""
        return self.instance.tags.get(ACCESS_TAG, PUBLIC)

    @property
    def is_private(self) -> bool:
        """True if SSH goes to its private address."""
        return self.access != PUBLIC

    @property
    def endpoint(self) -> Endpoint:
        """Where its SSH server answers."""
        endpoint = self.instance.endpoint(self.user)
        return replace(endpoint, host=self.instance.private_host) if self.is_private else endpoint

    def is_named(self, name: str) -> bool:
        """True if a name means this cluster, one of its runs, or its controlling instance."""
        return name in {self.name, self.cluster_id, self.instance.instance_id} or is_run_of(self.name, name)


def find_detached(
    instances: Iterable[Instance], *, cloud: str, region: str, profile: str = ""
) -> list[DetachedCluster]:
    """Return the clusters that some of these instances control, as far as those are up."""
    return [
        DetachedCluster(
            cluster_id=instance.tags.get(CLUSTER_TAG, ""),
            name=cluster_name(instance.tags),
            cloud=cloud,
            region=region,
            instance=instance,
            user=instance.tags[CONTROLLER_TAG],
            host_key=instance.tags.get(HOST_KEY_TAG, ""),
            profile=profile,
        )
        for instance in instances
        if CONTROLLER_TAG in instance.tags and instance.alive
    ]
