"""What EC2 is asked for, and what it answers.

The plan decides a `MachineSpec`: all that is the same for every instance. `launch.provision` adds type, zone,
market, counts and token to it, which gives a `LaunchRequest`; the dry runs before the launch use the same
class. Several pools are one `FleetRequest`. `cloud.compute` writes EC2's arguments from them and nothing
else, and answers with a `LaunchResult`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Image, Instance, Market, spot_key_grant
from dlcloud.planning.networks import DEFAULT_NETWORK, PlannedNetwork

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.instances import Instances


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """A network interface of an instance; `kind` is EC2's: interface, efa or efa-only."""

    card: int
    device: int
    kind: str

    @property
    def is_efa(self) -> bool:
        return self.kind.startswith("efa")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """What every instance of a launch is like, from whichever pool EC2 takes it.

    Made once of a recipe, by `for_recipe`, and carried unchanged: in the plan, in each launch request and in
    the dry runs. `cloud.compute.requests` writes EC2's arguments from it. A key of a recipe that is only
    passed on to EC2 is read here and written there.
    """

    image: Image
    disk_gib: int
    network: PlannedNetwork = DEFAULT_NETWORK
    profile: str = ""
    """The name of an instance profile that exists; empty for none."""
    kms_key: str = ""
    """The KMS key of the root volume; empty for the account's default key of EBS."""
    tenancy: str = "default"
    """EC2's: default, or dedicated for hardware that no other account uses."""
    placement_group: str = ""
    """`cluster` for a group that dlcloud makes, or the name of one of the user's; empty for none."""
    interfaces: tuple[NetworkInterface, ...] = ()
    """The network interfaces, the first first; empty: a usual one."""
    outside_reservations: bool = False
    """Run in no reservation that the request does not name, although an open one would take the instances."""

    @classmethod
    def for_recipe(
        cls,
        instances: "Instances",
        image: Image,
        *,
        network: PlannedNetwork = DEFAULT_NETWORK,
        interfaces: tuple[NetworkInterface, ...] = (),
    ) -> "MachineSpec":
        """Return what the instances of a recipe are like, on this image and in this network."""
        return cls(
            image=image,
            disk_gib=max(instances.disk_gib, image.snapshot_gib),
            network=network,
            profile=instances.profile,
            kms_key=instances.kms_key,
            tenancy=instances.tenancy,
            placement_group=instances.placement_group,
            interfaces=interfaces,
            outside_reservations=instances.reservations is not None,
        )

    def notes(self, region: str, markets: Collection[Market]) -> list[str]:
        """Return what a plan says of the keys that are passed on to EC2, and what they need."""
        lines = []
        if self.profile:
            lines.append(f"instances have the instance profile {self.profile}: every login has its role")
        if self.kms_key:
            lines.append(f"root volumes are encrypted by {self.kms_key}")
        if self.kms_key and Market.SPOT in markets:
            lines.append(f"spot: {spot_key_grant(region, self.kms_key)}")
        if self.tenancy != "default":
            lines.append(
                f"tenancy {self.tenancy}: EC2 bills more than the prices shown, and a fee per hour; "
                "budget.max_usd counts neither"
            )
        return lines

    @property
    def efa_interfaces(self) -> int:
        """How many Elastic Fabric Adapters each instance has."""
        return sum(interface.is_efa for interface in self.interfaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One RunInstances call, or the launch template of a fleet. `zone` empty: EC2 chooses."""

    machine: MachineSpec
    instance_type: str
    zone: str
    market: Market
    min_count: int
    max_count: int
    security_group_id: str
    user_data: str
    client_token: str
    tags: Mapping[str, str]
    max_hourly_usd: Decimal | None = None
    """The most that an hour of a spot instance may cost; None: EC2's own limit, the on-demand price."""
    reservation_id: str = ""
    """The Capacity Reservation to launch into; empty for none."""
    in_block: bool = False
    """The reservation is a Capacity Block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """One CreateFleet call of type instant: the best of several pools.

    `pools` are (instance type, zone), the most wanted type first. `template` is a launch template's name.
    `max_hourly_usd`, by type: the most that an hour of a spot instance may cost. `single_zone`: EC2 chooses
    one of the zones for all spot instances, and one for all on-demand instances.
    """

    template: str
    pools: tuple[tuple[str, str], ...]
    spot_count: int
    on_demand_count: int
    client_token: str
    tags: Mapping[str, str]
    requested_at: datetime
    max_hourly_usd: Mapping[str, Decimal] = field(default_factory=dict)
    single_zone: bool = False
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Subnet ids by zone; without one, the default subnet of the zone."""
    burstable_template: str = ""
    """The launch template of burstable types, if `pools` has any: no other type takes their credits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRefusal:
    """A pool's refusal of all or some instances; `code` is EC2's error code, if it is known."""

    pool: str
    zone: str
    error: CloudError
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The instances of a launch request, and the refusals of pools that gave none or too few."""

    instances: tuple[Instance, ...]
    refusals: tuple[PoolRefusal, ...] = ()
    fleet_id: str = ""
