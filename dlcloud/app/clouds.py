"""Clouds and accounts as use cases call them: the real EC2 and the local one, each with its clients.

`AccountClients` makes the boto3 clients of one command, one set for each Region and profile; `Clouds` makes
of them what calls EC2, the limits of the account, secrets and the bill. Both make things when they are first
used, and the local EC2 is started then if it does not run. The user's own credentials never reach the local
EC2.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from getpass import getpass
from typing import TYPE_CHECKING

from dlcloud.app.profiles import find_profile
from dlcloud.app.terminal.console import Console
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.cloud.storage.secret_values import SecretValues
from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import CredentialsError
from dlcloud.resources.texts import control_policy
from dlcloud.store.cache import AnswerCache, PriceCache
from dlcloud.store.database import Database


@dataclass(slots=True, kw_only=True, eq=False)
class AccountClients:
    """Makes the clients of AWS and of the local EC2, with the credentials of each.

    Args:
        profile: Returns the name of this command's profile; empty without one.
        local_site: Returns the local EC2, which is started if it does not run.
        console: Returns the console, which shows what is waited for.
        on_instance: This process runs on an instance, with its role.
    """

    profile: Callable[[], str]
    local_site: Callable[[], LocalSite | SharedSite]
    console: Callable[[], Console]
    on_instance: bool
    _made: dict[tuple[str, str, str], Clients] = field(default_factory=dict, init=False)

    def get(self, name: str, region: str, profile: str | None = None) -> Clients:
        """Return the clients of a cloud, a region and a profile, which is this command's by default."""
        named = profile if profile is not None else self.profile()
        # The local EC2 has its own keys, and an instance its role.
        profile = "" if name == "local" or self.on_instance else named
        key = (name, region, profile)
        other = next((made for (n, _, p), made in self._made.items() if (n, p) == (name, profile)), None)
        if key not in self._made:
            self._made[key] = other.in_region(region) if other else self._make(*key)
        return self._made[key]

    def _make(self, name: str, region: str, profile: str) -> Clients:
        made = Clients(region=region, on_instance=self.on_instance, ask=self._ask_for_code)
        place = "the local EC2" if name == "local" else f"AWS in {region}"
        made.on_call = partial(self._show_call, f"asking {place} ...")
        chosen = find_profile(profile, purpose="the profile of its clusters")
        if chosen is not None:
            made.login = chosen.login
        if name == "local":
            with self.console().waiting("looking for the local EC2, or starting it ..."):
                endpoint = self.local_site().start()
            made.endpoint_url = endpoint.url
            if endpoint.started_at:
                made.began_at = datetime.fromisoformat(endpoint.started_at)
            if not made.on_instance:
                made.access_key = endpoint.owner_key()
                made.session_token = endpoint.access_key.token if endpoint.access_key else ""
        return made

    def _show_call(self, message: str, is_begun: bool) -> None:  # noqa: FBT001  a sink of two values
        if is_begun:
            self.console().begin_wait(message)
        else:
            self.console().end_wait()

    def _ask_for_code(self, text: str) -> str:
        """Ask for the MFA code of a profile while nothing else is displayed."""
        if not sys.stdin.isatty():
            raise CredentialsError(
                "the AWS profile asks for an MFA code, and stdin is not a terminal",
                "run `aws sts get-caller-identity` in one first: its session is used here, too",
            )
        with self.console().suspended():
            return getpass(text)


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
