"""What a plan takes of the account's reservations, and what it says of them."""

from collections.abc import Sequence
from datetime import timedelta

from dlcloud.model.instance import Market
from dlcloud.planning.facts import PreflightFacts
from dlcloud.planning.reserved_capacity import (
    BLOCK_MARGIN,
    ReservationFit,
    ReservedCapacity,
    choose_reservations,
    describe_reserved,
    idle_capacity,
    without_ending,
)
from dlcloud.recipe.recipe import Recipe


def take_reserved(
    recipe: Recipe,
    facts: PreflightFacts,
    *,
    offered: Sequence[str],
    zones: Sequence[str],
    most: int,
    strict: bool,
) -> tuple[tuple[ReservedCapacity, ...], list[str]]:
    """Return what is idle in the recipe's reservations, as far as it suits, and why others do not.

    Args:
        recipe: Says which reservations, and how many of their instances stay idle.
        facts: The reservations and prices of now.
        offered: The types that are launched.
        zones: The zones that are known to have a subnet; empty: any.
        most: How many instances are missing.
        strict: A reservation that is named must be there.

    Raises:
        CloudError: A reservation that is named by its id is not there, or is of another type.
    """
    instances, choice = recipe.instances, recipe.instances.reservations
    if choice is None or not choice.is_used:
        return (), []
    length = timedelta(hours=recipe.budget.max_hours)
    fit = ReservationFit(
        types=instances.types,
        zones=instances.zones or zones,
        group=instances.own_group,
        ends_after=None if facts.asked_at is None else facts.asked_at + length,
    )
    chosen, reasons = choose_reservations(choice, facts.reservations, fit, strict=strict)
    if facts.asked_at is not None:
        chosen = without_ending(chosen, facts.asked_at, BLOCK_MARGIN)
    chosen = [one for one in chosen if one.instance_type in offered]
    taken = idle_capacity(chosen, keep_free=choice.keep_free, most=most)
    if not taken and most:
        kept = f" beyond the {choice.keep_free} that stay free" if choice.keep_free else ""
        reasons.append(f"no reserved instance is idle{kept}: all come from the markets")
    on_demand = [price for price in facts.prices if price.market is Market.ON_DEMAND]
    usd = {price.instance_type: price.hourly_usd for price in on_demand}
    return tuple(taken), [*reasons, *describe_reserved(taken, usd)]
