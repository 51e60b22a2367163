"""The way to the instances of a cluster: what its recipe's network says, put together."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.network.tunnels import PLUGIN, EndpointTunnels, start_session
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import CloudError, RecipeError, UnreachableError
from dlcloud.model.remote import Access, Endpoint
from dlcloud.recipe.network import Bastion, Network, read_network
from dlcloud.ssh.route import BastionRoute, Connect, Stream, connect_by_program, connect_directly
from dlcloud.store.clusters import Clusters

if TYPE_CHECKING:  # most commands do not need the detached mode
    from dlcloud.detached.locate import DetachedCluster
    from dlcloud.recipe.profile import Profile

NO_PLUGIN = (
    "access: session-manager needs AWS's session-manager-plugin on the PATH",
    "Systems Manager user guide, Install the Session Manager plugin; or access: instance-connect-endpoint",
)


def route_of_cluster(cluster: Cluster, clients: Clients) -> Connect:
    """Return the way to the instances of a private cluster of this home."""
    return route_of(read_network(cluster.network), clients)


def route_of_detached(
    detached: "DetachedCluster",
    clients: Clients,
    clusters: Clusters,
    profile: "Profile | None",
) -> Connect:
    """Return the way to the instance that controls a private cluster; see `network_of_detached`."""
    return route_of(network_of_detached(detached, clusters, profile), clients)


def route_of(network: Network, clients: Clients) -> Connect:
    """Return what opens connections to instances in a network.

    Raises:
        RecipeError: The network's access is a bastion that it does not name.
    """
    if network.access is Access.INSTANCE_CONNECT_ENDPOINT:
        tunnels = EndpointTunnels(clients)
        return lambda endpoint, timeout_s: tunnels.open(
            endpoint.instance_id, endpoint.host, endpoint.port, max(timeout_s, TUNNEL_S)
        )
    if network.access is Access.SESSION_MANAGER:
        return lambda endpoint, timeout_s: _open_session(clients, endpoint, timeout_s)
    if network.access is Access.BASTION:
        if network.bastion is None:
            raise RecipeError(
                "access: bastion, and no bastion is named", "set network.bastion in the profile"
            )
        return bastion_route(network.bastion).connect
    return connect_directly


TUNNEL_S = 15.0
"""Seconds for the way through the endpoint, which takes TLS, a signature and EC2's own connection."""


def network_of_detached(
    detached: "DetachedCluster", clusters: Clusters, profile: "Profile | None"
) -> Network:
    """Return the network of a detached cluster: as this home stored it, else by its tag and the profile.

    Raises:
        RecipeError: It is reached by a bastion, which the profile does not name.
    """
    cluster, access = clusters.find(detached.cluster_id), detached.access
    if cluster is not None and cluster.is_private:
        return read_network(cluster.network)
    if profile is not None and profile.network is not None and profile.network.access == access:
        return profile.network
    if access not in {*Access} - {Access.BASTION}:
        raise RecipeError(f"the cluster is reached by {access}", "set network.bastion in the profile")
    return Network(access=Access(access))


def bastion_route(bastion: Bastion) -> BastionRoute:

    return BastionRoute(
        host=bastion.host,
        port=bastion.port,
        user=bastion.user,
        key=Path(bastion.key).expanduser(),
        known_hosts=Path(bastion.known_hosts).expanduser(),
    )


def refuse_missing_program(network: Network | None) -> None:
    """Refuse an access that this machine lacks the program for, before anything is created.

    Raises:
        RecipeError: It does.
    """
    if network is not None and network.access is Access.SESSION_MANAGER and shutil.which(PLUGIN) is None:
        raise RecipeError(*NO_PLUGIN)


def _open_session(clients: Clients, endpoint: Endpoint, timeout_s: float) -> Stream:

    try:
        words, environment = start_session(clients, endpoint.instance_id, endpoint.port, os.environ)
    except CloudError as error:
        if error.is_final and "TargetNotConnected" not in error.message:
            raise
        # The instance's agent registers some time after the boot.
        raise UnreachableError(error.message, error.hint) from error
    return connect_by_program(words, environment, timeout_s)
