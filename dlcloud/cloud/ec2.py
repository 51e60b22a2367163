"""The one implementation of `planning.protocols.Cloud`: EC2 over boto3, at AWS or at the local endpoint."""

from collections.abc import Callable

from dlcloud.cloud.account_images import Ec2OwnImages
from dlcloud.cloud.batch import AwsBatch
from dlcloud.cloud.buckets import S3Buckets
from dlcloud.cloud.caller import Ec2Caller
from dlcloud.cloud.capacity import Ec2Capacity
from dlcloud.cloud.claims import Ec2Claims
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.fleets import Ec2Fleets
from dlcloud.cloud.images import Images
from dlcloud.cloud.instance_types import InstanceTypes
from dlcloud.cloud.instances import Ec2Instances
from dlcloud.cloud.leftovers import Ec2Leftovers
from dlcloud.cloud.network_access import Ec2Network
from dlcloud.cloud.prices import Prices
from dlcloud.cloud.roles import IamRoles


class Ec2Cloud:
    """EC2 in one region, an object for each subject; `planning.protocols` documents their methods.

    Args:
        clients: The region's boto3 clients.
        types: The region's instance types.
        images: The region's machine images.
        prices: The region's prices.
        own_cidr: Looks up the caller's own network.
        control_policy: Renders the policy of a cluster's role, from the cluster's id, region and partition.
        inside: The caller reaches the instances by private addresses, as one of them does.
        pause: Waits so many seconds before a refused call is repeated.
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
