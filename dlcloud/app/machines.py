"""The instances of clusters as use cases reach them: routes, connections, launchers."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlcloud.app.profiles import find_profile
from dlcloud.app.terminal.console import Console
from dlcloud.launch.admit import AdmittingDialer
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster
from dlcloud.model.events import Emit
from dlcloud.model.remote import Dial
from dlcloud.ssh.dial import Dialer
from dlcloud.ssh.route import Connect, connect_directly
from dlcloud.store.home import Store
from dlcloud.system.files import allow_many_files

if TYPE_CHECKING:  # the first brings botocore; an `up` without --detach imports nothing of the second
    from dlcloud.app.clouds import Clouds
    from dlcloud.detached.locate import DetachedCluster
    from dlcloud.launch.launcher import Launcher


@dataclass(kw_only=True)
class Machines:
    """Makes what reaches the instances of a cluster.

    Args:
        clouds: Returns what calls the cloud of a cluster.
        store: As of the command.
        clock: As of the command.
        emit: Takes the events.
        console: Returns the console, which shows what is waited for.
        inside: This process runs on an instance of its own cluster.
        opened: Closes the connections when the command ends.
    """

    clouds: "Callable[[], Clouds]"
    store: Store
    clock: Clock
    emit: Emit
    console: Callable[[], Console]
    inside: bool
    opened: ExitStack

    def dialer(self, cluster: Cluster) -> Dialer:
        """Return the connections to a cluster's instances; they are closed with this context."""
        allow_many_files()
        secret = self.store.paths.host_secret(cluster.cluster_id)
        dialer = Dialer(
            key_path=self.store.paths.key(cluster.cluster_id),
            known_hosts=self.store.paths.known_hosts(cluster.cluster_id),
            secret=lambda _: secret.read_text() if secret.exists() else None,
            clock=self.clock,
            loopback_only=cluster.cloud == "local",
            connect=self.route(cluster),
            waiting=self.console().waiting,
        )
        self.opened.callback(dialer.close)
        return dialer

    def route(self, cluster: Cluster) -> Connect:
        """Return what opens connections to a cluster's instances, the way that its network allows.

        A process on one of them connects directly.
        """
        if self.inside or not cluster.is_private:
            return connect_directly
        from dlcloud.app.routes import route_of_cluster  # noqa: PLC0415  botocore and pydantic

        return route_of_cluster(
            cluster, self.clouds().clients.get(cluster.cloud, cluster.region, cluster.profile)
        )

    def route_of_detached(self, detached: "DetachedCluster") -> Connect:
        """Return what opens connections to the instance that controls a cluster, of whichever machine's."""
        if not detached.is_private:
            return connect_directly
        from dlcloud.app.routes import route_of_detached  # noqa: PLC0415  as above

        clients = self.clouds().clients.get(detached.cloud, detached.region, detached.profile)
        return route_of_detached(detached, clients, self.store.clusters, find_profile(detached.profile))

    def admitting_dialer(self, cluster: Cluster) -> Dial:
        """Return connections to a cluster that is up, also from a machine whose address has changed."""
        if cluster.is_private:
            return self.dialer(cluster)
        return AdmittingDialer(
            dialer=self.dialer(cluster),
            cloud=lambda: self.clouds().cloud_of(cluster),
            cluster_id=cluster.cluster_id,
            emit=self.emit,
        )

    def launcher(self, cluster: Cluster) -> "Launcher":
        from dlcloud.launch.launcher import Launcher  # noqa: PLC0415  pydantic, which `ssh` never needs

        return Launcher(
            cluster=cluster,
            cloud=self.clouds().cloud_of(cluster),
            account=self.clouds().account_of(cluster),
            store=self.store,
            dialer=self.dialer(cluster),
            clock=self.clock,
            emit=self.emit,
        )
