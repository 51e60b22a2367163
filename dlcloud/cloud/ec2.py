"""EC2 in one Region over boto3, at AWS or at the local endpoint: an object for each subject.

A function takes the object that it needs; the whole is for what concerns a whole cluster. Every method is
safe to call from several threads, and may raise CredentialsError, ThrottledError, or CloudError for a
refusal of another kind.
"""

from collections.abc import Callable
from datetime import datetime

from dlcloud.cloud.account.leftovers import Ec2Leftovers
from dlcloud.cloud.account.roles import IamRoles
from dlcloud.cloud.api.answers import Cache
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.compute.batch_queues import AwsBatch
from dlcloud.cloud.compute.capacity import Ec2Capacity
from dlcloud.cloud.compute.claims import Ec2Claims
from dlcloud.cloud.compute.fleets import Ec2Fleets
from dlcloud.cloud.compute.images import Ec2OwnImages, Images
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.cloud.network.security_groups import Ec2Network, own_cidr
from dlcloud.cloud.offers.catalog import BUNDLED
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.cloud.offers.prices import KeptPrices, Prices
from dlcloud.cloud.storage.buckets import S3Buckets
from dlcloud.model.clock import Clock
from dlcloud.planning.quotas import CallerIdentity

LOCAL_CIDR = "127.0.0.1/32"


class Ec2Cloud:
    """EC2 in one Region, an object for each subject.

    Args:
        clients: The region's boto3 clients.
        types: The region's instance types.
        images: The region's machine images.
        prices: The region's prices.
        own_cidr: Looks up the caller's own network.
        control_policy: Renders the policy of a cluster's role, from the cluster's id, region and partition.
        inside: The caller reaches the instances by private addresses, as one of them does.
        pause: Waits some seconds before a refused call is repeated.
    """

    def __init__(
        self,
        *,
        clients: Clients,
        types: InstanceTypes,
        images: Images,
        prices: Prices,
        own_cidr: Callable[[], str],
        control_policy: Callable[[str, str, str], str],
        pause: Callable[[float], None],
        inside: bool = False,
    ) -> None:
        self.region = clients.region
        self.endpoint_url = clients.endpoint_url
        self.began_at = clients.began_at
        self.caller = Ec2Caller(clients=clients, own_cidr=own_cidr)
        self.types = types
        self.prices = prices
        self.images = images
        self.own_images = Ec2OwnImages(clients=clients, pause=pause)
        self.instances = Ec2Instances(clients=clients, pause=pause, inside=inside)
        self.fleets = Ec2Fleets(clients=clients, pause=pause)
        self.network = Ec2Network(clients)
        self.capacity = Ec2Capacity(clients=clients, pause=pause)
        self.buckets = S3Buckets(clients)
        self.roles = IamRoles(clients=clients, control_policy=control_policy, pause=pause)
        self.claims = Ec2Claims(clients)
        self.batch = AwsBatch(clients=clients, pause=pause)
        self.leftovers = Ec2Leftovers(
            clients=clients, own_images=self.own_images, roles=self.roles, batch=self.batch
        )


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

    def session_ends_at(self) -> datetime | None:
        """Return when the caller's login ends, where nothing renews it; None if that is unknown."""
        return self._clients.session_ends_at()

    def cidr(self) -> str:
        """Return the address of the caller as EC2 sees it, as a /32 (or /128) network."""
        return self._own_cidr()

    def regions(self) -> list[str]:
        """Return the Regions that the account can use."""
        with translate_errors("listing regions (ec2:DescribeRegions)"):
            answer = self._clients.get("ec2").describe_regions()
        return sorted(region["RegionName"] for region in answer["Regions"])


def open_cloud(
    clients: Clients,
    *,
    answers: Cache,
    kept_prices: KeptPrices | None,
    clock: Clock,
    control_policy: Callable[[str, str, str], str],
    inside: bool,
) -> Ec2Cloud:
    """Return EC2 in the region of the clients.

    Args:
        clients: The region's boto3 clients.
        answers: Keeps what AWS answered on types and images.
        kept_prices: Keeps prices; None for the local EC2, of which no price and no type is kept.
        clock: Dates answers, and waits.
        control_policy: See `Ec2Cloud`.
        inside: See `Ec2Cloud`.
    """
    is_local = kept_prices is None
    return Ec2Cloud(
        clients=clients,
        types=InstanceTypes(clients=clients, catalog=BUNDLED, cache=answers, clock=clock),
        images=Images(clients=clients, cache=answers, clock=clock),
        prices=Prices(clients=clients, catalog=BUNDLED, cache=kept_prices, clock=clock),
        own_cidr=(lambda: LOCAL_CIDR) if is_local else own_cidr,
        control_policy=control_policy,
        pause=clock.sleep,
        inside=inside,
    )
