"""Spread a number of instances over pools: what is paid for first, then the cheapest."""

from collections.abc import Iterable

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import PoolKey, PoolState, Situation

Targets = dict[PoolKey, int]


def kept(situation: Situation) -> Targets:
    """Return what always runs: what the caller keeps, and as much as fits of what costs nothing."""
    targets: Targets = {pool.key: pool.keep for pool in situation.pools if pool.keep}
    free = [pool for pool in situation.pools if pool.hourly_usd <= 0]
    return fill(targets, free, situation.maximum)


def fill(targets: Targets, pools: Iterable[PoolState], size: int) -> Targets:
    """Add instances of `pools`, in their order, until there are `size` in all or no more are obtainable."""
    filled = dict(targets)
    missing = size - sum(filled.values())
    for pool in pools:
        if missing <= 0:
            break
        added = min(missing, max(0, pool.obtainable - filled.get(pool.key, 0)))
        if added:
            filled[pool.key] = filled.get(pool.key, 0) + added
            missing -= added
    return filled


def in_order(situation: Situation, market: Market, *, stay_usd: float = float("inf")) -> list[PoolState]:
    """Return a market's pools, the cheapest first.

    Args:
        situation: The pools.
        market: Which of them.
        stay_usd: A pool where instances run counts as so much cheaper an hour; by default it comes first.
    """
    pools = [pool for pool in situation.pools if pool.market is market]
    if len(pools) > 1:
        pools.sort(
            key=lambda pool: (
                pool.hourly_usd - (stay_usd if pool.present else 0.0),
                pool.hourly_usd,
                pool.name,
            )
        )
    return pools


def spot_first(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.SPOT), size)


def on_demand_too(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.ON_DEMAND), size)
