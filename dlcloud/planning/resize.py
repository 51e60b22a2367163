"""How a cluster gets another size: which instances are launched, and which are terminated.

`dlcloud resize` and an `up` of a smaller recipe ask here. The coordinator is never terminated, and on-demand
instances beyond the recipe's base go before spot ones: they stood in for spot and cost the most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.model.cluster import CONTROLLER_TAG, Member
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.recipe.instances import Count
from dlcloud.recipe.recipe import Recipe

LARGEST = 1000  # as `count` in a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The actions that lead from `present` to `target` instances.

    Attributes:
        launch: How many instances to launch.
        on_demand: How many of them must be on-demand, so that the recipe's base is whole.
        end: The instances to terminate, in this order.
        coordinator: The instance that is never terminated; None if all are spot.
        reasons: Why these instances.
    """

    target: int
    present: int
    launch: int
    on_demand: int
    end: tuple[Member, ...]
    coordinator: Member | None
    reasons: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """True if the cluster has its size already."""
        return not self.launch and not self.end


def decide_size(
    living: Sequence[Member], target: int, *, base: int = 0, rounds: Sequence[Market] = (Market.ON_DEMAND,)
) -> Resize:
    """Decide what to launch and what to terminate.

    On-demand instances beyond the recipe's base end first, because they stood in for spot and cost the most,
    then spot, then the base, then reserved ones, which cost nothing more; the newest first. The coordinator,
    the oldest on-demand one, never ends.

    Args:
        living: The cluster's instances.
        target: The number of instances, at least 1.
        base: How many of them are on-demand, whatever the market.
        rounds: The markets of the others, in the order in which they are asked.
    """
    first = coordinator(living)
    end = tuple(_ending_order(living, base)[: max(0, len(living) - target)])
    launch = max(0, target - len(living))
    only_on_demand = Market.SPOT not in rounds
    missing_base = min(launch, max(0, min(base, target) - len(_of_market(living, Market.ON_DEMAND))))
    return Resize(
        target=target,
        present=len(living),
        launch=launch,
        on_demand=launch if only_on_demand else missing_base,
        end=end,
        coordinator=first,
        reasons=tuple(_reasons(end, first, 0 if only_on_demand else missing_base)),
    )


def refuse_size(recipe: Recipe, target: int) -> None:
    """Refuse a size outside of the recipe's range; a plain `count` allows any, a deadline none.

    Raises:
        RecipeError: It is out of bounds, or the deadline chooses it.
    """
    if recipe.deadline is not None:
        message = f"the deadline of {recipe.name} chooses the number of its instances"
        raise RecipeError(message, "dlcloud status shows what it expects; instances.count sets the bounds")
    count = recipe.instances.count
    least, most = (count.min, count.max) if isinstance(count, Count) else (1, LARGEST)
    if not least <= target <= most:
        hint = "dlcloud down ends all of it" if target < 1 else "the recipe's instances.count sets the bounds"
        raise RecipeError(f"{recipe.name} has between {least} and {most} instances, not {target}", hint)


def coordinator(living: Sequence[Member]) -> Member | None:
    """Return the instance that others depend on: the one that controls them, or the oldest on-demand one."""
    controlling = [member for member in living if CONTROLLER_TAG in member.instance.tags]
    return next(iter([*controlling, *_of_market(living, Market.ON_DEMAND)]), None)


def _ending_order(living: Sequence[Member], base: int) -> list[Member]:
    first = coordinator(living)
    reserved = [one for one in _of_market(living, Market.ON_DEMAND) if one.instance.reservation_id]
    paid = [one for one in living if not one.instance.reservation_id]
    on_demand, spot = _of_market(paid, Market.ON_DEMAND), _of_market(paid, Market.SPOT)
    least = max(0 if reserved else 1, base - len(reserved))
    kept, beyond = on_demand[:least], on_demand[least:]
    order = [*beyond[::-1], *spot[::-1], *kept[::-1], *reserved[::-1]]
    return [member for member in order if member is not first]


def _of_market(members: Sequence[Member], market: Market) -> list[Member]:
    """Return the members of a market, the oldest first."""
    ordered = sorted(members, key=lambda member: (member.instance.launched_at, member.instance.instance_id))
    return [member for member in ordered if member.instance.market is market]


def _reasons(end: Sequence[Member], first: Member | None, base: int) -> list[str]:
    reasons = []
    if base:
        reasons.append(f"{base} of the new ones on-demand, so that the recipe's on_demand_base is whole")
    if end:
        reasons.append("on-demand beyond the base ends first, then spot, then the base; the newest first")
        if first is not None:
            reasons.append(f"{first.instance.instance_id}, the coordinator, stays")
    return reasons
