"""The protocols that flows are typed by; each is implemented once, below them, and once in the tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from dlcloud.model.cluster import Leftover
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import X86_64, Image, Instance, InstanceType, Market, Price
from dlcloud.model.own_images import OwnImage
from dlcloud.planning.quota import Usage
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.planning.successors import KnownType
from dlcloud.recipe.data_set import DataSet

if TYPE_CHECKING:
    from dlcloud.planning.control_claim import ControlClaim
    from dlcloud.recipe.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One RunInstances call, or the launch template of a fleet. `zone` empty: EC2 chooses."""

    instance_type: str
    zone: str
    market: Market
    min_count: int
    max_count: int
    image: Image
    disk_gib: int
    security_group_id: str
    user_data: str
    client_token: str
    tags: Mapping[str, str]
    max_usd: Decimal | None = None
    """The most that an hour of a spot instance may cost; None: EC2's own limit, the on-demand price."""
    public_address: bool | None = None
    """Whether there is a public address; None: as the subnet says."""
    subnet_id: str = ""
    """The subnet; empty: the default one of the zone."""
    security_groups: tuple[str, ...] = ()
    """The ids of groups of the user's own."""
    vpc_id: str = ""
    """The VPC of the security group of a dry run; empty: the default one."""
    instance_profile: str = ""
    """The name of an instance profile that exists."""
    kms_key: str = ""
    """The KMS key of the root volume; empty for the account's default key of EBS."""
    reservation_id: str = ""
    """The Capacity Reservation to launch into; empty for none."""
    in_block: bool = False
    """The reservation is a Capacity Block."""
    outside_reservations: bool = False
    """Run in no reservation, although an open one would take the instances."""
    placement_group: str = ""
    """The name of a placement group; empty for none."""
    efa_interfaces: int = 0
    """Elastic Fabric Adapters of each instance; 0: usual interfaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """One CreateFleet call of type instant: the best of all pools at once.

    `pools` are (instance type, zone), the most wanted type first. `template` is a launch template's name.
    `max_usd`, by type: the most that an hour of a spot instance may cost. `single_zone`: EC2 chooses one of
    the zones for all spot instances, and one for all on-demand instances.
    """

    template: str
    pools: tuple[tuple[str, str], ...]
    spot_count: int
    on_demand_count: int
    client_token: str
    tags: Mapping[str, str]
    requested_at: datetime
    max_usd: Mapping[str, Decimal] = field(default_factory=dict)
    single_zone: bool = False
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Subnet ids by zone; without one, the default subnet of the zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A pool's refusal of all or some instances; `code` is EC2's error code, if it is known."""

    pool: str
    zone: str
    error: CloudError
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The instances of a launch request, and the refusals of pools that gave none or too few."""

    instances: tuple[Instance, ...]
    refusals: tuple[Refusal, ...] = ()
    fleet_id: str = ""


class Account(Protocol):
    """The limits and the usage of an account in one region; see `cloud.account`.

    Every method may raise CredentialsError, ThrottledError, or CloudError for a refusal of another kind.
    """

    def known_types(self) -> Sequence[KnownType]:
        """Return the bundled table of instance types."""

    def limits(self, codes: Sequence[str], *, fresh: bool = False) -> Mapping[str, int]:
        """Return limits in vCPUs by their codes, at most a day old, or asked for now."""

    def usage(self) -> Sequence[Usage]:
        """Return every instance that counts against the limits."""

    def subnets(self, *, fresh: bool = False) -> Mapping[str, Subnet]:
        """Return the default subnets by zone."""

    def network(self, network: "Network") -> FoundNetwork:
        """Return what a recipe's network is; raises CloudError where there is no such thing."""

    def spot_scores(self, instance_types: Sequence[str], count: int) -> Mapping[str, int]:
        """Return the spot placement score by zone id."""

    def dry_run(self, action: str, request: LaunchRequest) -> None:
        """Ask whether EC2 would make a change of a launch, as of `RunInstances`; raises its refusal."""


class Cloud(Protocol):
    """EC2, as far as dlcloud uses it. Every method is safe to call from several threads.

    Every method may raise CredentialsError, ThrottledError, or CloudError for a refusal of another kind.
    """

    region: str

    @property
    def endpoint_url(self) -> str:
        """The address of the local EC2; empty for AWS."""

    def identity(self) -> Identity:
        """Return the caller's identity."""

    def caller_cidr(self) -> str:
        """Return the caller's own address as EC2 sees it, as a /32 (or /128) network."""

    def hardware(self, instance_types: Sequence[str]) -> Mapping[str, InstanceType]:
        """Return types by name: as EC2 describes them, else by the bundled table; unknown ones are absent."""

    def offered_zones(self, instance_types: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of the region that offer each type, sorted; a type not offered is absent."""

    def resolve_image(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image:
        """Find the image a recipe names: `ami-…`, an SSM parameter's path, or `auto`.

        `auto` depends on the architecture, and on whether the instance has an NVIDIA GPU.
        """

    def prices(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        """Return the known prices, spot prices by zone."""

    def reservations(self) -> list[CapacityReservation]:
        """Return the account's Capacity Reservations and Capacity Blocks that are active or scheduled."""

    def create_placement_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Return the name of the cluster's own placement group, made if it is missing."""

    def delete_placement_group(self, cluster_id: str) -> None:
        """Delete the cluster's own placement group; no error where there is none."""

    def instances(self, cluster_id: str = "") -> list[Instance]:
        """Return the instances that carry the cluster's tag (any managed one without `cluster_id`)."""

    def create_security_group(self, cluster_id: str, tags: Mapping[str, str], *, vpc_id: str = "") -> str:
        """Return the id of the cluster's security group, made if missing; by default in the default VPC."""

    def find_security_group(self, cluster_id: str) -> str:
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

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Launch between `min_count` and `max_count` instances.

        Raises:
            CapacityError: The pool has too few.
            QuotaError: The account may not have so many.
        """

    def create_launch_template(self, request: LaunchRequest) -> str:
        """Return the name of a launch template that says what `request` does; made if it is missing."""

    def launch_fleet(self, request: FleetRequest) -> LaunchResult:
        """Launch up to the counts from all pools at once; refusals of pools are returned, not raised."""

    def fleets(self, cluster_id: str) -> list[str]:
        """Return the ids of all fleets that carry the cluster's tag, those that are deleted included."""

    def delete_fleets(self, fleet_ids: Sequence[str]) -> None:
        """Delete fleets with their instances; no error for one that is gone."""

    def delete_launch_templates(self, cluster_id: str) -> None:
        """Delete the cluster's launch templates."""

    def revoke_ssh(self, cluster_id: str) -> None:
        """Close port 22 of the cluster's instances for every network."""

    def regions(self) -> list[str]:
        """Return the regions that the account can use."""

    def leftovers(self) -> list[Leftover]:
        """Return every existing resource of the region with dlcloud's tag, of any machine or user."""

    def delete_volumes(self, volume_ids: Sequence[str]) -> None:
        """Delete volumes; no error for one that is gone."""

    def delete_interfaces(self, interface_ids: Sequence[str]) -> None:
        """Delete network interfaces; no error for one that is gone."""

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances; no error for one that is gone."""

    def delete_security_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's security groups; returns those that instances still use."""

    def create_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> str:
        """Begin to create an image of an instance, or find the one of that name; return its id.

        The instance is rebooted for it. The tags are those of the image and of its snapshot.
        """

    def own_images(self, cluster_id: str = "") -> list[OwnImage]:
        """Return the images that a cluster made, the oldest first; all of dlcloud's without `cluster_id`."""

    def delete_images(self, image_ids: Sequence[str]) -> None:
        """Delete images with their snapshots; no error for one that is gone."""

    def delete_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        """Delete snapshots; no error for one that is gone."""

    def put_control_role(
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

    def put_storage_role(
        self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = ""
    ) -> str:
        """Return the name of the instance profile of a cluster's buckets, made where it is missing."""

    def describe_prefix(self, uri: str) -> DataSet:
        """Return what is below a prefix of a bucket."""

    def newest_step(self, uri: str) -> int:
        """Return the committed steps of the newest whole checkpoint below a prefix; 0 if there is none."""

    def bucket_region(self, uri: str) -> str:
        """Return the region of a bucket."""

    def attach_profile(self, instance_id: str, profile: str) -> None:
        """Give an instance a profile, which may be a new one; no error if it already has it."""

    def claim_control(self, term: int, instance_id: str, tags: Mapping[str, str]) -> bool:
        """Claim the control of the cluster of these tags for an instance; False if the term is claimed."""

    def control_claims(self, cluster_id: str) -> list["ControlClaim"]:
        """Return the claims of a cluster, the oldest first."""

    def delete_control_role(self, cluster_id: str) -> None:
        """Delete the cluster's role with its instance profile; no error where they are gone."""

    def put_tags(self, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Add tags to what exists, or change them."""

    def admit_key(self, instance: Instance, user: str, public_key: str) -> None:
        """Admit the holder of a key as a user for the next 60 seconds.

        Raises:
            CloudError: The instance does not run, or takes no keys in this way.
        """
