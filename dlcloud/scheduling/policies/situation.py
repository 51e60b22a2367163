"""What a policy is given, what it answers, and how a number of instances is spread over pools.

What is given holds until the policy returns. A replay then changes it, since a new one for each of its
thousands of events would take longer than the policy; a policy never does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import expm1

from dlcloud.model.instance import Market

HOUR_S = 3600.0
REFUSAL_S = HOUR_S
"""So long a request for on-demand instances may be refused without the deadline being lost.

Source: the issue's own adversary ("on-demand is refused for an hour"); EC2 states no bound.
"""

PRICE_MEMORY_H = 24.0
"""A price that differs from its pool's usual one is expected to have come back by 1 - 1/e after so long.

Source: EC2 user guide, "Spot Instance pricing history": prices adjust gradually, to long-term trends of
supply and demand. The time is an assumption."""

PoolKey = tuple[Market, str]
"""A market and the name of a pool in it: an Availability Zone, a zone and a type, or a reservation."""


@dataclass(slots=True, kw_only=True)
class Availability:
    """What a pool's recent past says, over all the time that it was watched.

    Attributes:
        observed_s: How long the pool was watched.
        available_s: How much of that it had at least one instance to give.
        unchanged_s: How long it has been as it is now: having some, or none.
        on_factor: How many times as often as usual its spells with some end (`spells`).
        off_factor: The same of those with none.
        drops: How often it took some instances back and had others left.
    """

    observed_s: float = 0.0
    available_s: float = 0.0
    unchanged_s: float = 0.0
    on_factor: float = 1.0
    off_factor: float = 1.0
    drops: int = 0


UNKNOWN = Availability()


@dataclass(slots=True, kw_only=True)
class PoolState:
    """Where instances of one market can run, and how many do.

    Attributes:
        market: Spot or on-demand; a reservation is on-demand at a price of 0.
        name: Unique in its market.
        hourly_usd: Price of one instance-hour; 0 for capacity that is paid for anyway. Traffic between zones
            is not in it: a replay bills it, but no policy weighs it. A float: it is compared, never billed.
        obtainable: Instances that could run here now, with those that do; for a pool that was not asked,
            what the caller believes.
        running: Instances whose workers take part in steps.
        starting: Instances that are billed and boot.
        keep: Fewer than this never run here, such as the instance that coordinates.
        availability: Its recent past.
        usual_usd: The mean of its price over the time that is known; 0: nothing is known but `hourly_usd`.
        region: Where it is; empty if there is one Region only, or for on-demand instances, which every
            Region has.
        key: Market and name.
    """

    market: Market
    name: str
    hourly_usd: float
    obtainable: int
    running: int = 0
    starting: int = 0
    keep: int = 0
    availability: Availability = field(default_factory=lambda: UNKNOWN)
    usual_usd: float = 0.0
    region: str = ""
    key: PoolKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.market, self.name)

    def expected_usd(self, hours: float) -> float:
        """Return the expected mean price of the next hours: it returns to its usual one, from that of now."""
        if self.usual_usd <= 0 or self.usual_usd == self.hourly_usd or hours <= 0:
            return self.hourly_usd
        span = hours / PRICE_MEMORY_H
        return self.usual_usd + (self.hourly_usd - self.usual_usd) * -expm1(-span) / span

    @property
    def present(self) -> int:
        """Instances that are billed here."""
        return self.running + self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How fast a number of workers is, in units of one worker alone.

    Attributes:
        loss: The share of its speed that each further worker costs all: n workers are n / (1 + loss (n - 1))
            times as fast as one. 0 is linear. Source: Amdahl's law, with `loss` as the serial part.
    """

    loss: float = 0.0

    def speed(self, workers: int) -> float:
        return workers / (1.0 + self.loss * (workers - 1)) if workers > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What it takes to move the model's state to another Region: seconds without progress, and USD."""

    seconds: float = 0.0
    usd: float = 0.0


NO_MOVE = Move()


def move_of_state(gb: float, *, usd_per_gb: float, gbit_s: float = 5.0) -> Move:
    """Return what it takes to move a checkpoint of a size between Regions.

    Source of the bandwidth: EC2 user guide, "Amazon EC2 instance network bandwidth": to another Region,
    instances with fewer than 32 vCPUs have 5 Gbit/s at most.
    """
    return Move(seconds=8 * gb / gbit_s, usd=gb * usd_per_gb)


@dataclass(slots=True, kw_only=True)
class Situation:
    """All that a policy may use.

    Work is counted in instance-seconds: what one worker alone does in a second.

    Attributes:
        work_s: All the work, as instance-seconds.
        work_left_s: What is left of it.
        allowed_s: Seconds from the beginning to the deadline.
        time_left_s: Seconds from now to the deadline.
        pools: All pools, on-demand ones included; at least one of them on-demand.
        minimum: With fewer workers no step is made.
        maximum: More workers are of no use.
        changeover_s: Seconds without progress after a worker joined or left; measured.
        boot_s: Seconds from a request until the instance's worker joins; billed, the others train on.
        refusal_s: Seconds for which on-demand instances may be refused without the deadline being lost.
        scaling: Speed against workers.
        changing_s: Seconds until those that run make progress again, after the last change.
        region: Where the model's state is; empty before the start.
        move: What it takes to move the state to another Region.
        moves: The same of Regions where it differs, such as one that the state was copied to ahead.
    """

    work_s: float
    work_left_s: float
    allowed_s: float
    time_left_s: float
    pools: tuple[PoolState, ...]
    minimum: int = 1
    maximum: int = 1
    changeover_s: float = 0.0
    boot_s: float = 0.0
    refusal_s: float = REFUSAL_S
    scaling: Scaling = field(default_factory=Scaling)
    changing_s: float = 0.0
    region: str = ""
    move: Move = NO_MOVE
    moves: Mapping[str, Move] = field(default_factory=dict)

    def move_to(self, region: str) -> Move:
        """Return what it takes to move the state to a Region."""
        return self.moves.get(region, self.move)

    @property
    def restart_s(self) -> float:
        """Seconds from the loss of the only worker until another makes progress."""
        return self.changeover_s + self.boot_s

    @property
    def least_time_s(self) -> float:
        """Seconds that the work left takes with as many workers as are allowed."""
        return self.work_left_s / self.scaling.speed(self.maximum)

    @property
    def slack_s(self) -> float:
        """Seconds that can still be spent without progress at full size."""
        return self.time_left_s - self.changing_s - self.least_time_s

    def present(self, market: Market) -> int:
        return sum(pool.present for pool in self.pools if pool.market is market)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """How many instances of each pool, and why.

    Attributes:
        targets: Instances by pool; 0 for a pool that is not named.
        reason: One clause for people.
        ask_again_s: Seconds after which the policy must be asked even if nothing happens.
    """

    targets: Mapping[PoolKey, int]
    reason: str
    ask_again_s: float = float("inf")

    def count(self, market: Market) -> int:
        return sum(count for (its_market, _), count in self.targets.items() if its_market is market)


Policy = Callable[[Situation], PoolDecision]


Targets = dict[PoolKey, int]


def kept(situation: Situation) -> Targets:
    """Return what always runs: what the caller keeps, and as much as fits of what costs nothing."""
    targets: Targets = {pool.key: pool.keep for pool in situation.pools if pool.keep}
    free = [pool for pool in situation.pools if pool.hourly_usd <= 0]
    return fill(targets, free, situation.maximum) if free else targets


def fill(targets: Targets, pools: Iterable[PoolState], size: int) -> Targets:
    """Add instances of `pools`, in their order, until there are `size` in all or no more are obtainable."""
    filled = dict(targets)
    missing = size - sum(filled.values())
    for pool in pools:
        if missing <= 0:
            break
        before = filled.get(pool.key, 0)
        added = min(missing, pool.obtainable - before)
        if added > 0:
            filled[pool.key] = before + added
            missing -= added
    return filled


def in_order(situation: Situation, market: Market) -> list[PoolState]:
    """Return a market's pools: first those where instances run, and of each kind the cheapest first."""
    pools = [pool for pool in situation.pools if pool.market is market]
    if len(pools) > 1:
        pools.sort(key=lambda pool: (not (pool.running or pool.starting), pool.hourly_usd, pool.name))
    return pools


def spot_first(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.SPOT), size)


def on_demand_too(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.ON_DEMAND), size)
