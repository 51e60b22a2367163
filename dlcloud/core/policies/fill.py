"""Spread a number of instances over pools: what is paid for first, then the cheapest."""

from collections.abc import Iterable

from dlcloud.core.instance import Market
from dlcloud.core.policies.situation import Pool, PoolKey, Situation

Targets = dict[PoolKey, int]


def kept(situation: Situation) -> Targets:
    """Return what always runs: what the caller keeps, and as much as fits of what costs nothing."""
    targets: Targets = {pool.key: pool.keep for pool in situation.pools if pool.keep}
    free = [pool for pool in situation.pools if pool.hourly_usd <= 0]
    return fill(targets, free, situation.maximum)


def fill(targets: Targets, pools: Iterable[Pool], size: int) -> Targets:
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


def in_order(situation: Situation, market: Market) -> list[Pool]:
    """Return a market's pools, the cheapest first; between equals, the one that already runs more."""
    pools = [pool for pool in situation.pools if pool.market is market]
    return (
        sorted(pools, key=lambda pool: (pool.hourly_usd, -pool.present, pool.name))
        if len(pools) > 1
        else pools
    )


def spot_first(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.SPOT), size)


def on_demand_too(situation: Situation, targets: Targets, size: int) -> Targets:
    return fill(targets, in_order(situation, Market.ON_DEMAND), size)
