"""The caller, as AWS sees it: its identity, its address, its regions."""

from collections.abc import Callable

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.planning.limits import CallerIdentity


class Ec2Caller:
    """The owner of the credentials.

    Args:
        clients: The clients that hold them.
        own_cidr: Looks up the caller's own network.
    """

    def __init__(self, *, clients: Clients, own_cidr: Callable[[], str]) -> None:
        self._clients = clients
        self._own_cidr = own_cidr
        self._identity: CallerIdentity | None = None

    def identity(self) -> CallerIdentity:
        """Return the caller's identity, asked for once."""
        if self._identity is None:
            with translate_errors("checking the credentials (sts:GetCallerIdentity)"):
                answer = self._clients.get("sts").get_caller_identity()
            self._identity = CallerIdentity(account=answer["Account"], arn=answer["Arn"])
        return self._identity

    def cidr(self) -> str:
        """Return the address of the caller as EC2 sees it, as a /32 (or /128) network."""
        return self._own_cidr()

    def regions(self) -> list[str]:
        """Return the Regions that the account can use."""
        with translate_errors("listing regions (ec2:DescribeRegions)"):
            answer = self._clients.get("ec2").describe_regions()
        return sorted(region["RegionName"] for region in answer["Regions"])
