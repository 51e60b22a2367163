"""Requests for instances, as a cloud takes them, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Image, Instance, Market


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
    interfaces: tuple[NetworkInterface, ...] = ()
    """The network interfaces of each instance, the first first; empty: a usual one."""


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
