"""The protocols that flows are typed by; `dlcloud.cloud` implements them, and the tests have fakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from dlcloud.model.account_plan import AccountPlan
from dlcloud.model.cluster import Leftover
from dlcloud.model.instance import X86_64, Image, Instance, InstanceType, Market, Price
from dlcloud.model.own_images import OwnImage
from dlcloud.planning.batch_queue import CloudBatch
from dlcloud.planning.launch_request import FleetRequest, LaunchRequest, LaunchResult
from dlcloud.planning.quota import Usage
from dlcloud.planning.reserved_capacity import CapacityReservation
from dlcloud.planning.successors import KnownType
from dlcloud.recipe.data_set import DataSet

if TYPE_CHECKING:
    from dlcloud.planning.control_claim import ControlClaim
    from dlcloud.recipe.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """The caller's identity, by its credentials."""

    account: str
    arn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """The subnet of a zone: the default one, or the recipe's, whose `subnet_id` is given.

    `assigns_addresses`: instances have a public address without asking for one. `reaches_internet`: its route
    table has an internet gateway; True if that is unknown. `has_nat`: it has another way out.
    """

    zone_id: str
    assigns_addresses: bool = True
    reaches_internet: bool = True
    subnet_id: str = ""
    has_nat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNetwork:
    """What a recipe's network turned out to be.

    `subnets` are by zone, one each; `groups` are the ids of the user's own security groups; `cidrs` are the
    VPC's address ranges, and `endpoints` the ids of its EC2 Instance Connect Endpoints that are ready.
    """

    vpc_id: str
    subnets: Mapping[str, Subnet]
    groups: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


class Account(Protocol):
    """The limits and the usage of an account in one region; see `cloud.account.limits`.

    Every method may raise CredentialsError, ThrottledError, or CloudError for a refusal of another kind.
    """

    def known_types(self) -> Sequence[KnownType]:
        """Return the bundled table of instance types."""

    def limits(self, codes: Sequence[str], *, fresh: bool = False) -> Mapping[str, int]:
        """Return limits in vCPUs by their codes, at most a day old, or asked for now."""

    def usage(self) -> Sequence[Usage]:
        """Return every instance that counts against the limits."""

    def account_plan(self) -> AccountPlan | None:
        """Return the account's plan; None where AWS has none for it."""

    def subnets(self, *, fresh: bool = False) -> Mapping[str, Subnet]:
        """Return the default subnets by zone."""

    def network(self, network: "Network") -> FoundNetwork:
        """Return what a recipe's network is; raises CloudError where there is no such thing."""

    def spot_scores(self, instance_types: Sequence[str], count: int) -> Mapping[str, int]:
        """Return the spot placement score by zone id."""

    def dry_run(self, action: str, request: LaunchRequest, *, fresh: bool = False) -> None:
        """Ask whether EC2 would make a change of a launch, as of `RunInstances`; raises its refusal.

        What was allowed within the last hour is not asked again, unless `fresh`.
        """


class CloudCaller(Protocol):
    """The owner of the credentials."""

    def identity(self) -> CallerIdentity:
        """Return the caller's identity."""

    def cidr(self) -> str:
        """Return the caller's own address as EC2 sees it, as a /32 (or /128) network."""

    def regions(self) -> list[str]:
        """Return the regions that the account can use."""


class CloudTypes(Protocol):
    """The instance types of a region."""

    def hardware(self, instance_types: Sequence[str]) -> Mapping[str, InstanceType]:
        """Return types by name: as EC2 describes them, else by the bundled table; unknown ones are absent."""

    def listed(self, instance_types: Sequence[str]) -> Mapping[str, InstanceType]:
        """Return the same without a request: as EC2 described them within the last day, else by the table."""

    def zones(self, instance_types: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of the region that offer each type, sorted; a type not offered is absent."""


class CloudPrices(Protocol):
    """The prices of a region."""

    def find(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        """Return the known prices, spot prices by zone."""

    def spot_history(self, instance_types: Sequence[str], since: datetime) -> list[Price]:
        """Return every spot price of types in each zone since a time, the oldest first."""


class CloudImages(Protocol):
    """The machine images of a region."""

    def resolve(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image:
        """Find the image a recipe names: `ami-…`, an SSM parameter's path, or `auto`.

        `auto` depends on the architecture, and on whether the instance has an NVIDIA GPU.
        """

    def last(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image | None:
        """Return what `resolve` found within the last day, without a request; None without that."""


class CloudOwnImages(Protocol):
    """The images that dlcloud made, and their snapshots."""

    def create(self, instance_id: str, name: str, tags: Mapping[str, str]) -> str:
        """Begin to create an image of an instance, or find the one of that name; return its id.

        The instance is rebooted for it. The tags are those of the image and of its snapshot.
        """

    def find(self, cluster_id: str = "") -> list[OwnImage]:
        """Return the images that a cluster made, the oldest first; all of dlcloud's without `cluster_id`."""

    def delete(self, image_ids: Sequence[str]) -> None:
        """Delete images with their snapshots; no error for one that is gone."""

    def delete_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        """Delete snapshots; no error for one that is gone."""


class CloudInstances(Protocol):
    """The instances of clusters."""

    def find(self, cluster_id: str = "") -> list[Instance]:
        """Return the instances that carry the cluster's tag (any managed one without `cluster_id`)."""

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Launch between `min_count` and `max_count` instances.

        Raises:
            CapacityError: The pool has too few.
            QuotaError: The account may not have so many.
        """

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances; no error for one that is gone."""

    def put_tags(self, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Add tags to what exists, or change them."""

    def attach_profile(self, instance_id: str, profile: str) -> None:
        """Give an instance a profile, which may be a new one; no error if it already has it."""

    def admit_key(self, instance: Instance, user: str, public_key: str) -> None:
        """Admit the holder of a key as a user for the next 60 seconds.

        Raises:
            CloudError: The instance does not run, or takes no keys in this way.
        """


class CloudFleets(Protocol):
    """Fleets of instances, with their launch templates."""

    def create_template(self, request: LaunchRequest) -> str:
        """Return the name of a launch template that says what `request` does; made if it is missing."""

    def launch(self, request: FleetRequest) -> LaunchResult:
        """Launch up to the counts from all pools at once; refusals of pools are returned, not raised."""

    def find(self, cluster_id: str) -> list[str]:
        """Return the ids of all fleets that carry the cluster's tag, those that are deleted included."""

    def delete(self, fleet_ids: Sequence[str]) -> None:
        """Delete fleets with their instances; no error for one that is gone."""

    def delete_templates(self, cluster_id: str) -> None:
        """Delete the cluster's launch templates."""


class CloudNetwork(Protocol):
    """The security groups of clusters."""

    def create_group(self, cluster_id: str, tags: Mapping[str, str], *, vpc_id: str = "") -> str:
        """Return the id of the cluster's security group, made if missing; by default in the default VPC."""

    def find_group(self, cluster_id: str) -> str:
        """Return the id of the cluster's security group, which was created before."""

    def allow_ssh(self, security_group_id: str, cidr: str, *, named: bool = False) -> None:
        """Allow one network to reach port 22; no error if it already may.

        One that the user has `named` stays when this machine's address changes.
        """

    def move_ssh(self, cluster_id: str, cidr: str) -> list[str] | None:
        """Allow SSH from a network in place of the single addresses that dlcloud looked up.

        Returns:
            The addresses that are no longer allowed; None if the network was allowed already.
        """

    def allow_peers(self, security_group_id: str) -> None:
        """Allow the group's instances to reach each other's TCP ports; no error if they already may."""

    def allow_fabric(self, security_group_id: str) -> None:
        """Allow the group's instances all traffic among themselves, as EFA needs it."""

    def revoke_ssh(self, cluster_id: str) -> list[str]:
        """Close port 22 of the cluster's instances for every network; returns the groups that EC2 lists."""

    def delete_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's security groups; returns those that instances still use."""


class CloudCapacity(Protocol):
    """Capacity Reservations and placement groups."""

    def reservations(self) -> list[CapacityReservation]:
        """Return the account's Capacity Reservations and Capacity Blocks that are active or scheduled."""

    def create_placement_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Return the name of the cluster's own placement group, made if it is missing."""

    def delete_placement_group(self, cluster_id: str) -> None:
        """Delete the cluster's own placement group; no error where there is none."""


class CloudBuckets(Protocol):
    """Buckets with data and checkpoints."""

    def describe_prefix(self, uri: str) -> DataSet:
        """Return what is below a prefix of a bucket."""

    def newest_step(self, uri: str) -> int:
        """Return the committed steps of the newest whole checkpoint below a prefix; 0 if there is none."""

    def abort_uploads(self, uri: str) -> int:
        """Abort the unfinished uploads of checkpoints below a prefix; returns how many there were."""

    def last_step(self, uri: str, program: str) -> int:
        """Return the newest step if the training of a program, by its digest, ended with it; else 0."""

    def region_of(self, uri: str) -> str:
        """Return the region of a bucket."""

    def put(self, uri: str, name: str, content: bytes) -> None:
        """Store an object below a prefix."""

    def get(self, uri: str, name: str) -> bytes:
        """Return an object below a prefix."""

    def names(self, uri: str) -> set[str]:
        """Return the names, without folders, of the objects below a prefix."""


class CloudRoles(Protocol):
    """The roles of clusters' instances."""

    def put_control(
        self,
        cluster_id: str,
        tags: Mapping[str, str],
        *,
        boundary: str = "",
        storage: str = "",
        own: str = "",
    ) -> str:
        """Return the name of an instance profile that may control this cluster only.

        Its role, its policy and itself are made where they are missing; `boundary` is the ARN of the role's
        permissions boundary, `storage` the policy of the cluster's buckets, where it has some, and `own` what
        its recipe adds.
        """

    def put_storage(
        self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = ""
    ) -> str:
        """Return the name of the instance profile of a cluster's buckets, made where it is missing."""

    def put_batch(self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = "") -> str:
        """Return the name of the instance profile of AWS Batch's instances, and of the role of containers."""

    def delete(self, cluster_id: str) -> None:
        """Delete the cluster's role with its instance profile; no error where they are gone."""


class CloudClaims(Protocol):
    """Claims of the control of clusters."""

    def claim(self, term: int, instance_id: str, tags: Mapping[str, str]) -> bool:
        """Claim the control of the cluster of these tags for an instance; False if the term is claimed."""

    def find(self, cluster_id: str) -> list["ControlClaim"]:
        """Return the claims of a cluster, the oldest first."""


class CloudLeftovers(Protocol):
    """Everything of dlcloud's that exists."""

    def find(self) -> list[Leftover]:
        """Return every existing resource of the region with dlcloud's tag, of any machine or user."""

    def delete_volumes(self, volume_ids: Sequence[str]) -> None:
        """Delete volumes; no error for one that is gone."""

    def delete_interfaces(self, interface_ids: Sequence[str]) -> None:
        """Delete network interfaces; no error for one that is gone."""


class Cloud(Protocol):
    """EC2 in one region, as far as dlcloud uses it: an object for each subject.

    A function takes the object that it needs; the whole is for what concerns a whole cluster. Every method is
    safe to call from several threads, and may raise CredentialsError, ThrottledError, or CloudError for a
    refusal of another kind.
    """

    region: str
    endpoint_url: str
    """The address of the local EC2; empty for AWS."""

    @property
    def caller(self) -> CloudCaller: ...

    @property
    def types(self) -> CloudTypes: ...

    @property
    def prices(self) -> CloudPrices: ...

    @property
    def images(self) -> CloudImages: ...

    @property
    def own_images(self) -> CloudOwnImages: ...

    @property
    def instances(self) -> CloudInstances: ...

    @property
    def fleets(self) -> CloudFleets: ...

    @property
    def network(self) -> CloudNetwork: ...

    @property
    def capacity(self) -> CloudCapacity: ...

    @property
    def batch(self) -> CloudBatch: ...

    @property
    def buckets(self) -> CloudBuckets: ...

    @property
    def roles(self) -> CloudRoles: ...

    @property
    def claims(self) -> CloudClaims: ...

    @property
    def leftovers(self) -> CloudLeftovers: ...
