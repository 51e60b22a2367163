"""A cluster with the collaborators that work on it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.events import Emit
from dlcloud.model.instance import Instance
from dlcloud.model.remote import Connection, Dial
from dlcloud.store.home import Store

if TYPE_CHECKING:
    from dlcloud.cloud.ec2 import Ec2Cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedCluster:
    """One cluster and what it takes to work on it.

    Args:
        cluster: As the store remembers it.
        cloud: EC2 in the cluster's region.
        store: Where intents, instances and runs are remembered, and the keys lie.
        dialer: Connects to the cluster's instances.
        clock: For dates and timeouts.
        emit: Takes the events of all flows.
    """

    cluster: Cluster
    cloud: "Ec2Cloud"
    store: Store
    dialer: Dial
    clock: Clock
    emit: Emit

    @property
    def cluster_id(self) -> str:
        return self.cluster.cluster_id

    def describe_instances(self) -> dict[str, Instance]:
        """Return every instance that carries the cluster's tag, by its id: one call of EC2."""
        return {instance.instance_id: instance for instance in self.cloud.instances.find(self.cluster_id)}

    def is_ending(self) -> bool:
        """True once its termination has begun, by this command or another."""
        stored = self.store.clusters.find(self.cluster_id)
        return stored is not None and stored.state in {ClusterState.STOPPING, ClusterState.DOWN}

    def connect(self, instance: Instance, wait_s: float = 0.0) -> Connection:
        """Return a connection to an instance.

        Raises:
            UnreachableError, HostKeyError: The instance accepted none within `wait_s`.
        """
        return self.dialer.dial(instance.endpoint(self.cluster.user), wait_s=wait_s)
