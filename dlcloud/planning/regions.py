"""In which of several Regions a cluster is launched: where its job costs least, by the plan of each.

A Region's price of a job is that of its first capacity pool, with disks and addresses, for as long as the
budget lets instances live, and the traffic of data that lies in another Region. A Region that refuses the
plan is named with its reason. `up` launches in the first, and in the next one if that has no capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from dlcloud.model.errors import CapacityError, CloudError
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import cost_of_seconds
from dlcloud.planning.plan import Plan, RegionOffer

SECONDS_PER_MINUTE = 60


def rank_regions(plans: Mapping[str, Plan], refusals: Mapping[str, CloudError]) -> list[Plan]:
    """Return the plans, the cheapest first, each with the offers of all Regions.

    Raises:
        CloudError: Every Region refuses.
    """
    if not plans:
        errors = list(refusals.values())
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else CapacityError
        messages = [f"{name}: {error.message}" for name, error in refusals.items()]
        if len({error.message for error in errors}) == 1:
            messages = [f"{', '.join(refusals)}: {errors[0].message}"]
        raise kind("\n".join(messages), errors[0].hint)
    offers = [_offer(plan) for plan in plans.values()]
    offers.sort(key=lambda offer: (offer.job_usd is None, offer.job_usd or Decimal(0)))
    refused = [RegionOffer(region=name, refusal=error.message) for name, error in refusals.items()]
    return [replace(plans[offer.region], regions=(*offers, *refused)) for offer in offers]


def second_region(plan: Plan) -> str:
    """Return the best Region of a ranking after a plan's own; empty if no other one would do."""
    others = (offer.region for offer in plan.regions if not offer.refusal and offer.region != plan.region)
    return next(others, "")


def dearest(plans: Sequence[Plan]) -> Plan:
    """Return the plan that may cost most; one of an unknown price comes before all others."""
    return max(plans, key=lambda plan: (plan.worst_case_usd is None, plan.worst_case_usd or Decimal(0)))


def _offer(plan: Plan) -> RegionOffer:
    """Return what a plan's first choice costs: on spot EC2 chooses, most likely the cheapest."""
    pools = [pool for pool in plan.pools if pool.market is plan.rounds[0]] or list(plan.pools)
    if pools[0].market is Market.SPOT:
        pools.sort(key=lambda pool: pool.price.hourly_usd if pool.price else Decimal("Infinity"))
    price: Price | None = pools[0].price
    job_usd = None
    if price is not None:
        seconds, gib = plan.life_minutes * SECONDS_PER_MINUTE, plan.machine.disk_gib
        instance_usd = cost_of_seconds(price.hourly_usd, gib, seconds, region=plan.region)
        job_usd = instance_usd * plan.max_count + plan.traffic_usd
    return RegionOffer(
        region=plan.region,
        instance_type=pools[0].instance_type,
        price=price,
        traffic_usd=plan.traffic_usd,
        job_usd=job_usd,
    )
