"""What a situation says of spot, as the model that the rest of the run is planned with."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.fill import Targets
from dlcloud.scheduling.policies.situation import HOUR_S, PoolState, Situation
from dlcloud.scheduling.policies.value import MarkovModel
from dlcloud.scheduling.spells import OFF, ON

PRIOR_S = 2 * HOUR_S
PRIOR_AVAILABILITY = 0.45
"""What is believed of a pool's availability at first, as so long a time of watching it.

Source: the V100 traces of Wu et al., "Can't Be Late", NSDI 2024."""
PRIOR_DROPS = 0.2
"""This many losses of a part of a pool are believed of an hour before it was watched."""
SHARES = 4
"""Models differ by a quarter of the workers and of a probability, by a twentieth of a price, and by powers of
2 of times and rates: so that few tables are computed."""

Offer = tuple[float, PoolState, int]
"""USD an hour and instance, a pool, and how many of its instances cost so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of spot.

    Attributes:
        model: For the rest of the run.
        on_age: Class of age of the spell in the pool that is used first.
        off_age: Class of age of the time without any spot.
        losses_per_h: How often an hour some of the instances of the pool used first are expected to go.
    """

    model: MarkovModel
    on_age: int
    off_age: int
    losses_per_h: float


def spot_by_cost(situation: Situation, pause_usd: float | None = None) -> list[Offer]:
    """Return (USD an hour and instance, pool, instances) in the order in which they fill the workers.

    The next is always the cheapest for the workers that are still missing. The cost is the price, as expected
    until the pool takes them back, and what the pool's changeovers are expected to cost an hour: all workers
    stop when a spell ends, and once more to get there. As many instances share that as are taken: when many
    shared it of which one was needed, a single instance was moved from pool to pool and back, and every move
    stopped all. Pools that are dearer than on-demand are left out.

    Args:
        situation: The pools.
        pause_usd: What a stop of all workers costs; by default, its time on-demand.
    """
    dearest = on_demand_usd(situation)
    if pause_usd is None:
        pause_usd = situation.maximum * situation.restart_s / HOUR_S * dearest
    left_h = situation.least_time_s / HOUR_S
    candidates: list[tuple[float, float, PoolState, int]] = []
    for pool in situation.pools:
        if pool.market is not Market.SPOT or not 0 < pool.hourly_usd < dearest:
            continue
        stays = min(pool.present, pool.obtainable)
        more = min(pool.obtainable, situation.maximum) - stays
        losses = losses_per_h(pool)
        losses_usd, usd = pause_usd * losses, pool.expected_usd(min(left_h, 1 / losses))
        if stays:
            candidates.append((usd, losses_usd, pool, stays))
        if more > 0:
            candidates.append((usd, 2 * losses_usd, pool, more))
    offers: list[Offer] = []
    missing = situation.maximum
    while candidates:
        cost_usd, _, place = min(
            [
                (usd + losses_usd / min(count, max(1, missing)), pool.name, place)
                for place, (usd, losses_usd, pool, count) in enumerate(candidates)
            ]
        )
        _, _, pool, count = candidates.pop(place)
        offers.append((cost_usd, pool, count))
        missing -= count
    return offers


def on_demand_usd(situation: Situation) -> float:
    """Return the price of an on-demand instance-hour; infinite if there is none."""
    prices = [pool.hourly_usd for pool in situation.pools if pool.market is Market.ON_DEMAND]
    return min([usd for usd in prices if usd > 0], default=float("inf"))


def losses_per_h(pool: PoolState) -> float:
    """Return how often an hour a pool that has capacity now takes some of it back."""
    past = pool.availability
    age_s = past.unchanged_s if pool.obtainable else 0.0
    partial = HOUR_S * past.drops / (past.available_s + HOUR_S)
    return past.on_factor * ON.hourly[ON.age_class(age_s / HOUR_S)] + partial


def forecast(situation: Situation, offers: Sequence[Offer], spare_s: float) -> Forecast:
    """Return what is expected, if spot instances are taken in the order of `offers`.

    Args:
        situation: With at least one spot pool.
        offers: From `spot_by_cost`; empty if no spot is to be had.
        spare_s: The spare time at the start.
    """
    spot = [pool for pool in situation.pools if pool.market is Market.SPOT and pool.hourly_usd > 0]
    first = offers[0][1] if offers else min(spot, key=lambda pool: (pool.hourly_usd, pool.name))
    past = first.availability
    share, usd = _share_and_price(situation, offers, first)
    expected_drops = past.drops + (PRIOR_DROPS if situation.maximum > 1 else 0.0)
    drops = 2 * expected_drops * HOUR_S / (past.available_s + HOUR_S)
    model = MarkovModel(
        on_factor=_round_factor(past.on_factor),
        off_factor=_round_factor(sum([pool.availability.off_factor for pool in spot])),
        other=_other(spot, first),
        share=share,
        drops=_round(drops) if drops > 1 / 4 else 0.0,
        spot_usd=usd,
        changeover_h=situation.changeover_s / HOUR_S,
        boot_h=situation.boot_s / HOUR_S,
        work_h=situation.work_s / situation.scaling.speed(situation.maximum) / HOUR_S,
        spare_h=spare_s / HOUR_S,
    )
    unavailable_s = min([pool.availability.unchanged_s for pool in spot])
    return Forecast(
        model=model,
        on_age=ON.age_class(past.unchanged_s / HOUR_S),
        off_age=OFF.age_class(unavailable_s / HOUR_S),
        losses_per_h=losses_per_h(first),
    )


def spread(offers: Sequence[Offer], targets: Targets, size: int) -> Targets:
    """Add instances in the order of the offers, until there are `size` in all."""
    filled, missing = dict(targets), size - sum(targets.values())
    for _, pool, count in offers:
        taken = min(count, missing)
        if taken > 0:
            filled[pool.key] = filled.get(pool.key, 0) + taken
            missing -= taken
    return filled


def _share_and_price(situation: Situation, offers: Sequence[Offer], first: PoolState) -> tuple[float, float]:
    """Return the share of the workers that spot gives, and its price over that of on-demand."""
    room, count, usd = situation.maximum, 0, 0.0
    left_h = situation.least_time_s / HOUR_S
    for _, pool, number in offers:
        taken = min(number, room - count)
        count, usd = count + taken, usd + taken * pool.expected_usd(left_h)
    mean_usd = usd / count if count else first.expected_usd(left_h)
    share = ceil(SHARES * count / room) / SHARES if count else 1.0
    return share, round(20 * mean_usd / on_demand_usd(situation)) / 20


def _other(pools: Sequence[PoolState], first: PoolState) -> float:
    """Return the probability that another pool has capacity, as often as they had it so far."""
    none = 1.0
    for pool in pools:
        if pool is not first:
            past = pool.availability
            share = (PRIOR_S * PRIOR_AVAILABILITY + past.available_s) / (PRIOR_S + past.observed_s)
            none *= 1 - share
    return round((1 - none) * SHARES) / SHARES


def _round(value: float) -> float:
    """Round to a power of 2, so that few tables are computed."""
    return float(2.0 ** round(log2(value)))


def _round_factor(value: float) -> float:
    """Round to a power of the root of 2: factors of spells weigh more than the other parameters."""
    return float(2.0 ** (round(2 * log2(value)) / 2))
