"""Clouds and accounts as use cases call them: the real EC2 and the local one, each with its clients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dlcloud.app.account_clients import AccountClients
from dlcloud.app.terminal.console import Console
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.cloud.storage.secret_values import SecretValues
from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster
from dlcloud.resources.texts import control_policy
from dlcloud.store.cache import AnswerCache, PriceCache
from dlcloud.store.database import Database

if TYPE_CHECKING:
    from dlcloud.cloud.account.billing import Billing
    from dlcloud.cloud.account.limits import Ec2Account
    from dlcloud.cloud.ec2 import Ec2Cloud


@dataclass(kw_only=True)
class Clouds:
    """Makes what calls a cloud; those of a region and a profile are made once.

    Args:
        profile: Returns the name of this command's profile; empty without one.
        first_region: Returns the region that is asked first.
        local_site: Returns the local EC2, which is started if it does not run.
        console: Returns the console, which shows what is waited for.
        database: Keeps answers that hold for a while.
        clock: As of the command.
        on_instance: This process runs on an instance, with its role.
        verify: Refuses credentials of another account than a cluster's.
    """

    profile: Callable[[], str]
    first_region: Callable[[], str]
    local_site: Callable[[], LocalSite | SharedSite]
    console: Callable[[], Console]
    database: Database
    clock: Clock
    on_instance: bool
    verify: Callable[[Cluster], None]
    _clouds: "dict[tuple[int, bool], Ec2Cloud]" = field(init=False, default_factory=dict)

    @cached_property
    def clients(self) -> AccountClients:
        """The boto3 clients of this command."""
        return AccountClients(
            profile=self.profile,
            local_site=self.local_site,
            console=self.console,
            on_instance=self.on_instance,
        )

    def cloud_of(self, cluster: Cluster) -> "Ec2Cloud":
        """Return EC2 in a cluster's region, by the credentials that launched it.

        Raises:
            WrongAccountError: They are of another account by now.
        """
        self.verify(cluster)
        inside = self.on_instance or cluster.is_private
        return self.cloud(cluster.cloud, cluster.region, cluster.profile, inside=inside)

    def account_of(self, cluster: Cluster) -> "Ec2Account":
        """Return the account that a cluster was launched in."""
        return self.account(cluster.cloud, cluster.region, cluster.profile)

    def cloud(
        self, name: str, region: str, profile: str | None = None, *, inside: bool | None = None
    ) -> "Ec2Cloud":
        """Return EC2 in a region: AWS's, or the local one, which is started if it does not run.

        `profile` is the name of one, empty for none; by default this command's. `inside`: the instances are
        reached by their private addresses; by default if this process runs on an instance.
        """
        from dlcloud.cloud.ec2 import open_cloud  # noqa: PLC0415  `status` needs `instances` alone

        clients = self.clients.get(name, region, profile)
        reached_inside = self.on_instance if inside is None else inside
        key = (id(clients), reached_inside)
        if key not in self._clouds:
            self._clouds[key] = open_cloud(
                clients,
                answers=AnswerCache(self.database),
                kept_prices=None if name == "local" else PriceCache(self.database),
                clock=self.clock,
                control_policy=control_policy,
                inside=reached_inside,
            )
        return self._clouds[key]

    def instances(self, name: str, region: str, profile: str | None = None) -> Ec2Instances:
        """Return the instances of EC2 in a region; `profile` as for `cloud`."""
        clients = self.clients.get(name, region, profile)
        return Ec2Instances(clients=clients, pause=self.clock.sleep, inside=self.on_instance)

    def secret_values(self, name: str, region: str) -> SecretValues:
        return SecretValues(self.clients.get(name, region))

    def account(self, name: str, region: str, profile: str | None = None) -> "Ec2Account":
        """Return the account's limits, usage and subnets in a region; `profile` as for `cloud`."""
        from dlcloud.cloud.account.limits import open_account  # noqa: PLC0415  few commands need it

        clients = self.clients.get(name, region, profile)
        return open_account(clients, answers=AnswerCache(self.database), clock=self.clock)

    def billing(self) -> "Billing":
        from dlcloud.cloud.account.billing import Billing, billing_region  # noqa: PLC0415  few commands need it

        return Billing(self.clients.get("aws", billing_region(self.first_region())))
