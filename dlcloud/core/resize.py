"""The decision what becomes of a cluster that is to have another size: what to launch, what to end."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.core.cluster import Member
from dlcloud.core.errors import RecipeError
from dlcloud.core.instance import Market
from dlcloud.core.recipe import Count, Recipe

LARGEST = 1000  # as `count` in a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """What to do so that there are `target` instances.

    Args:
        target: How many there are to be.
        present: How many there are.
        launch: How many are missing.
        on_demand: How many of the missing must be on-demand, so that the recipe's base is whole.
        end: Which are too many, the first to go first.
        coordinator: The instance that is never ended; None where all are spot.
        reasons: Why just these.
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
        """Tell whether the cluster has its size already."""
        return not self.launch and not self.end


def decide(
    living: Sequence[Member], target: int, *, base: int = 0, rounds: Sequence[Market] = (Market.ON_DEMAND,)
) -> Resize:
    """Decide what to launch and what to end.

    Ended first are on-demand instances beyond the recipe's base, which stood in for spot and cost the most,
    then spot, then the base; the newest first. The coordinator, the oldest on-demand one, is never ended.

    Args:
        living: What the cluster has.
        target: How many instances there are to be, at least 1.
        base: How many are to be on-demand, whatever the market.
        rounds: The markets of the others, in the order in which they are asked.
    """
    first = coordinator(living)
    order = _ending_order(living, base)
    end = tuple(order[: max(0, len(living) - target)])
    fixed = sum(member.instance.market is Market.ON_DEMAND for member in living)
    launch = max(0, target - len(living))
    missing_base = min(launch, max(0, min(base, target) - fixed))
    only_on_demand = Market.SPOT not in rounds
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
    """Refuse a size that the recipe does not allow: a range binds, a plain `count` is only a beginning.

    Raises:
        RecipeError: It is out of bounds.
    """
    count = recipe.instances.count
    least, most = (count.min, count.max) if isinstance(count, Count) else (1, LARGEST)
    if not least <= target <= most:
        hint = "dlcloud down ends all of it" if target < 1 else "the recipe's instances.count sets the bounds"
        raise RecipeError(f"{recipe.name} has between {least} and {most} instances, not {target}", hint)


def coordinator(living: Sequence[Member]) -> Member | None:
    """Return the instance that others may depend on: the oldest on-demand one."""
    fixed = [member for member in _oldest_first(living) if member.instance.market is Market.ON_DEMAND]
    return fixed[0] if fixed else None


def _ending_order(living: Sequence[Member], base: int) -> list[Member]:
    first = coordinator(living)
    fixed = [each for each in _oldest_first(living) if each.instance.market is Market.ON_DEMAND]
    spot = [each for each in _oldest_first(living) if each.instance.market is Market.SPOT]
    kept, beyond = fixed[: max(1, base)], fixed[max(1, base) :]
    return [each for each in [*beyond[::-1], *spot[::-1], *kept[::-1]] if each is not first]


def _oldest_first(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda each: (each.instance.launched_at, each.instance.instance_id))


def _reasons(end: Sequence[Member], first: Member | None, base: int) -> list[str]:
    reasons = []
    if base:
        reasons.append(f"{base} of the new ones on-demand, so that the recipe's on_demand_base is whole")
    if end:
        reasons.append("on-demand beyond the base ends first, then spot, then the base; the newest first")
        if first is not None:
            reasons.append(f"{first.instance.instance_id}, the coordinator, stays")
    return reasons
