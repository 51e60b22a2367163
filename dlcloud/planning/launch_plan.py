"""The plan of a launch, as a value."""

from dataclasses import dataclass, replace
from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.planning.facts import CapacityPool
from dlcloud.planning.launch_request import MachineSpec
from dlcloud.planning.reserved_capacity import ReservedCapacity

SHORTEST_MINUTES = {"aws": 15, "local": 5}
"""The shortest life and the shortest idle time of an instance, by cloud: on AWS its boot and its set-up, in
which downloads hardly use the processor, may take most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions of `up`; `--dry-run` prints the same plan."""

    name: str
    cloud: str
    region: str
    account: str
    pools: tuple[CapacityPool, ...]
    min_count: int
    max_count: int
    machine: MachineSpec
    """What every instance is like, as EC2 is asked for it."""
    cidrs: tuple[str, ...]
    workload: str
    life_minutes: int
    hourly_usd: Decimal | None
    worst_case_usd: Decimal | None
    reasons: tuple[str, ...]
    keep: bool
    rounds: tuple[Market, ...]
    """The markets in the order in which they are asked; each round completes what those before it gave."""
    on_demand_base: int = 0
    idle_minutes: int | None = None
    max_usd: Decimal | None = None
    names_cidrs: bool = False
    """The user named the networks; they stay where this machine's address changes."""
    one_zone: bool = False
    """The instances share one zone, as far as it has capacity."""
    reserved: tuple[ReservedCapacity, ...] = ()
    """What is taken of reservations, before every market; a shortfall is not bought instead."""

    @property
    def reserved_count(self) -> int:
        """How many instances are taken of reservations."""
        return sum(one.count for one in self.reserved)

    @property
    def rehearsal(self) -> bool:
        """True if instance types are only rehearsed, on this machine."""
        return self.cloud == "local"

    def shortened(self, seconds: float) -> "Plan | None":
        """Return the plan for instances that live so much less; None if that is too little to be of use."""
        minutes = int(self.life_minutes - seconds / 60)
        return replace(self, life_minutes=minutes) if minutes >= SHORTEST_MINUTES[self.cloud] else None
