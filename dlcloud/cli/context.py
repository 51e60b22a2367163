"""The one place that builds collaborators; with `profiles`, the only one that reads the environment."""

import os
import signal
import sys
import time
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dlcloud.cli.interrupts import raise_on
from dlcloud.cli.log_file import log_to_file
from dlcloud.cli.profiles import CONTROLLER_VARIABLE, chosen_profile, find_profile
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import LocalCloudError, RecipeError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Store
from dlcloud.store.paths import Paths
from dlcloud.store.runs import Runs

if TYPE_CHECKING:  # these bring boto3 and paramiko, which most commands never need
    from dlcloud.cli.account_clients import AccountClients
    from dlcloud.cli.console import Console
    from dlcloud.cloud.account import Account
    from dlcloud.cloud.billing import Billing
    from dlcloud.cloud.ec2 import Ec2Cloud
    from dlcloud.cloud.secret_values import SecretValues
    from dlcloud.detached.locate import DetachedCluster
    from dlcloud.detached.remote import DetachedClusters
    from dlcloud.launch.launcher import Launcher
    from dlcloud.local.site import LocalEndpoint, LocalSite, SharedSite
    from dlcloud.model.cluster import Cluster
    from dlcloud.model.events import Emit
    from dlcloud.model.remote import Dial
    from dlcloud.ssh.dial import Dialer
    from dlcloud.ssh.route import Connect
    from dlcloud.store.benches import Benches
    from dlcloud.store.measurements import Measurements
    from dlcloud.store.transfer import RunTransfer

LOCAL_CIDR = "127.0.0.1/32"


def home() -> Path:
    """Return the folder of all that dlcloud keeps."""
    return Path(os.environ.get("DLCLOUD_HOME") or "~/.dlcloud").expanduser().absolute()


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Context:
    """Collaborators of one command, each made when first asked for; close it with `with`.

    Args:
        command: The command's name, for its log.
        verbose: The log goes to stderr, too.
    """

    command: str
    verbose: bool = False
    clock: SystemClock = field(default_factory=SystemClock)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Make SIGTERM and SIGHUP end the command as Ctrl-C does, so that it cleans up."""
        raise_on(signal.SIGTERM, signal.SIGHUP)
        log_to_file(self.paths, self.command, verbose=self.verbose)
        return self

    def __exit__(self, *_: object) -> None:
        """Close connections, database and console."""
        self._open.close()

    @property
    def controller_instance_id(self) -> str:
        """The id of the instance that this process runs on, where it controls its own cluster; else empty."""
        return os.environ.get(CONTROLLER_VARIABLE, "")

    @cached_property
    def paths(self) -> Paths:
        paths = Paths(home())
        paths.make_folder(paths.home)
        return paths

    @cached_property
    def console(self) -> "Console":
        from dlcloud.cli.console import console_for

        return self._open.enter_context(console_for(sys.stderr))

    @cached_property
    def emit(self) -> "Emit":
        """The sink of all events: the console."""
        return self.console.emit

    @cached_property
    def clients(self) -> "AccountClients":
        """The boto3 clients of this command."""
        from dlcloud.cli.account_clients import AccountClients

        return AccountClients(
            profile=lambda: self.profile,
            local_site=lambda: self.local_site,
            console=lambda: self.console,
            on_instance=bool(self.controller_instance_id),
        )

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self.database)

    @cached_property
    def runs(self) -> Runs:
        return Runs(self.database)

    @cached_property
    def measurements(self) -> "Measurements":
        from dlcloud.store.measurements import Measurements

        return Measurements(self.database)

    @cached_property
    def transfer(self) -> "RunTransfer":
        from dlcloud.store.transfer import RunTransfer

        return RunTransfer(self.database)

    @cached_property
    def benches(self) -> "Benches":
        from dlcloud.store.benches import Benches

        return Benches(self.database)

    @cached_property
    def store(self) -> Store:
        return Store(clusters=self.clusters, runs=self.runs, paths=self.paths)

    def with_emit(self, emit: "Emit") -> Self:
        """Return this context with another sink of events; it has the same store."""
        _ = self.store, self.benches, self.clients
        other = copy(self)
        vars(other)["emit"] = emit
        return other

    @cached_property
    def local_site(self) -> "LocalSite | SharedSite":
        """The local EC2 of this home, or the one that DLCLOUD_LOCAL_ENDPOINT names."""
        from dlcloud.local.site import ENDPOINT_VARIABLE, LocalSite, SharedSite

        if os.environ.get(ENDPOINT_VARIABLE):
            return SharedSite.from_environment(os.environ)
        return LocalSite(self.paths.local_site)

    def local_endpoint(self) -> "LocalEndpoint":
        """Return the running local EC2.

        Raises:
            LocalCloudError: None runs.
        """
        endpoint = self.local_site.find()
        if endpoint is None:
            raise LocalCloudError("the local EC2 is not running", "dlcloud local start")
        return endpoint

    @cached_property
    def profile(self) -> str:
        """The name of this command's profile for `cloud: aws`; empty without one."""
        name, profile = chosen_profile()
        return name if profile is not None and profile.cloud == "aws" else ""

    @cached_property
    def first_region(self) -> str:
        """The region that is asked which others the account has."""
        profile = find_profile(self.profile)
        named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return (profile.region if profile is not None else "") or named or DEFAULT_REGION

    def cloud_of(self, cluster: "Cluster") -> "Ec2Cloud":
        """Return EC2 in a cluster's region, by the credentials that launched it."""
        cloud = self.cloud(cluster.cloud, cluster.region, cluster.profile)
        cloud.by_private_addresses |= cluster.is_private
        return cloud

    def account_of(self, cluster: "Cluster") -> "Account":
        """Return the account that a cluster was launched in."""
        return self.account(cluster.cloud, cluster.region, cluster.profile)

    def cloud(self, name: str, region: str, profile: str | None = None) -> "Ec2Cloud":
        """Return EC2 in a region: AWS's, or the local one, which is started if it does not run.

        `profile` is the name of one, empty for none; by default this command's.
        """
        from dlcloud.cloud.catalog import Catalog
        from dlcloud.cloud.ec2 import Ec2Cloud
        from dlcloud.cloud.images import Images
        from dlcloud.cloud.instance_types import InstanceTypes
        from dlcloud.cloud.network import own_cidr
        from dlcloud.cloud.prices import Prices
        from dlcloud.resources.texts import control_policy
        from dlcloud.store.cache import AnswerCache, PriceCache

        local = name == "local"
        clients = self.clients.get(name, region, profile)
        catalog = Catalog()
        answers = AnswerCache(self.database)
        cache = None if local else PriceCache(self.database)
        return Ec2Cloud(
            clients=clients,
            types=InstanceTypes(
                clients=clients, catalog=catalog, cache=None if local else answers, clock=self.clock
            ),
            images=Images(clients=clients, cache=answers, clock=self.clock),
            prices=Prices(clients=clients, catalog=catalog, cache=cache, clock=self.clock),
            own_cidr=(lambda: LOCAL_CIDR) if local else own_cidr,
            control_policy=control_policy,
            pause=self.clock.sleep,
            inside=bool(self.controller_instance_id),
        )

    def secret_values(self, name: str, region: str) -> "SecretValues":
        from dlcloud.cloud.secret_values import SecretValues

        return SecretValues(self.clients.get(name, region))

    def account(self, name: str, region: str, profile: str | None = None) -> "Account":
        """Return the account's limits, usage and subnets in a region; `profile` as for `cloud`."""
        from dlcloud.cloud.account import Account
        from dlcloud.cloud.catalog import Catalog
        from dlcloud.store.cache import AnswerCache

        return Account(
            clients=self.clients.get(name, region, profile),
            catalog=Catalog(),
            cache=AnswerCache(self.database),
            clock=self.clock,
        )

    def billing(self) -> "Billing":
        from dlcloud.cloud.billing import Billing, billing_region

        return Billing(self.clients.get("aws", billing_region(self.first_region)))

    def dialer(self, cluster: "Cluster") -> "Dialer":
        """Return the connections to a cluster's instances; they are closed with this context."""
        from dlcloud.ssh.dial import Dialer
        from dlcloud.system.open_files import allow_many_files

        allow_many_files()
        secret = self.paths.host_secret(cluster.cluster_id)
        dialer = Dialer(
            key_path=self.paths.key(cluster.cluster_id),
            known_hosts=self.paths.known_hosts(cluster.cluster_id),
            secret=lambda _: secret.read_text() if secret.exists() else None,
            clock=self.clock,
            loopback_only=cluster.cloud == "local",
            connect=self.route(cluster),
            waiting=self.console.waiting,
        )
        self._open.callback(dialer.close)
        return dialer

    def route(self, cluster: "Cluster") -> "Connect":
        """Return what opens connections to a cluster's instances, the way that its network allows."""
        from dlcloud.cli.routes import route_of_cluster

        clients = partial(self.clients.get, cluster.cloud, cluster.region, cluster.profile)
        return route_of_cluster(cluster, clients, inside=bool(self.controller_instance_id))

    def route_of_detached(self, detached: "DetachedCluster") -> "Connect":
        """Return what opens connections to the instance that controls a cluster, of whichever machine's."""
        from dlcloud.cli.routes import route_of_detached

        clients = partial(self.clients.get, detached.cloud, detached.region, detached.profile)
        return route_of_detached(detached, clients, self.clusters, find_profile(detached.profile))

    def admitting_dialer(self, cluster: "Cluster") -> "Dial":
        """Return connections to a cluster that is up, also from a machine whose address has changed."""
        from dlcloud.launch.admit import AdmittingDialer

        if cluster.is_private:
            return self.dialer(cluster)

        return AdmittingDialer(
            dialer=self.dialer(cluster),
            cloud=self.cloud_of(cluster),
            cluster_id=cluster.cluster_id,
            emit=self.emit,
        )

    def launcher(self, cluster: "Cluster") -> "Launcher":
        from dlcloud.launch.launcher import Launcher

        return Launcher(
            cluster=cluster,
            cloud=self.cloud_of(cluster),
            account=self.account_of(cluster),
            store=self.store,
            dialer=self.dialer(cluster),
            clock=self.clock,
            emit=self.emit,
        )

    @cached_property
    def detached(self) -> "DetachedClusters":
        from dlcloud.detached.remote import DetachedClusters

        return DetachedClusters(
            store=self.store,
            database=self.database,
            cloud=self.cloud,
            has_local_site=lambda: self.local_site.find() is not None,
            controller_instance_id=self.controller_instance_id,
            route=self.route_of_detached,
            profile=self.profile,
            first_region=self.first_region,
            clock=self.clock,
            emit=self.emit,
        )

    def forward_command(self, name: str) -> int | None:
        """Run this very command on the instance that controls a detached cluster; see `DetachedClusters`."""
        from dlcloud.cli.safe_output import writer_to

        out, err = writer_to(sys.stdout.buffer), writer_to(sys.stderr.buffer)
        return self.detached.forward_command(name, sys.argv[1:], out=out, err=err)

    def find_cluster(self, name: str, *, exact: bool = False) -> "Cluster":
        """Return the active cluster of a name or id; without a name, the only one there is.

        The beginning of a name will do if it is that of one cluster, unless it must be `exact`.

        Raises:
            RecipeError: There is none, or the name is needed.
        """
        active = self.clusters.active()
        named = [cluster for cluster in active if not name or name in {cluster.name, cluster.cluster_id}]
        alike = [cluster for cluster in active if name and cluster.name.startswith(name)]
        chosen = named if named or exact else alike
        if len(chosen) == 1:
            return chosen[0]
        if name and not chosen:
            hint = f"dlcloud status {alike[0].name}" if alike else "dlcloud status lists what is up"
            raise RecipeError(f"no cluster {name} is up", hint)
        if not chosen:
            raise RecipeError("no cluster is up", "dlcloud up quickstart")
        names = ", ".join(cluster.name for cluster in chosen)
        raise RecipeError(
            f"several clusters are up: {names}", f"name one, as in dlcloud status {chosen[0].name}"
        )

    @cached_property
    def database(self) -> Database:
        database = Database(self.paths.database)
        self._open.callback(database.close)
        return database
