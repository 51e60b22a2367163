"""The type that an account could launch today, where its plan or its quotas refuse those of a recipe."""

from collections.abc import Sequence

from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.launch.preflight import ACCOUNT_PLAN, Preflight
from dlcloud.model.account_plan import AccountPlan
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Image, InstanceType, Market
from dlcloud.planning.fit import suits_workload
from dlcloud.planning.limits import CODES, quota_key, quotas
from dlcloud.recipe.recipe import Recipe

ASKED = 8
"""How many types are asked for the zones that offer them."""


def find_today(target: str, preflight: Preflight, types: InstanceTypes) -> str:
    """Return which type would start today, with the command that starts it; empty if none is known to.

    Args:
        target: The recipe, as the user names it; empty for one that dlcloud made of a type.
        preflight: The answers, of which the plan and the use of the account are taken.
        types: Describes and finds types.
    """
    recipe = preflight.recipe
    try:
        candidates = sorted(_startable(preflight, types), key=lambda entry: _rank(recipe, entry))[:ASKED]
        zones = types.zones([entry.name for entry in candidates]) if candidates else {}
    except CloudError:  # the checks above say what is refused
        return ""
    entry = next((entry for entry in candidates if entry.name in zones), None)
    if entry is None:
        return ""
    suits = suits_workload(recipe, entry)
    name = target if target and suits else "quickstart --cloud aws"
    note = "" if suits else ", though not this workload"
    return (
        f"; today {entry.name} ({entry.describe()}) would start{note}: dlcloud up {name} --type {entry.name}"
    )


def _startable(preflight: Preflight, types: InstanceTypes) -> list[InstanceType]:
    """Return the types that plan and quotas allow in one of the recipe's markets."""
    account, instances = preflight.account, preflight.recipe.instances
    if account is None:
        return []
    if preflight.answers.get(ACCOUNT_PLAN) is AccountPlan.FREE:
        offered: Sequence[InstanceType] = types.free_tier()
    else:
        offered = [one.hardware for one in account.known_types() if one.hardware.status == "current"]
    keys = {quota_key(entry.name, market) for entry in offered for market in instances.markets}
    limits = account.limits(sorted(CODES[key] for key in keys if key is not None))
    counted = quotas(limits, preflight.answers.get("usage", ()))
    left: dict[tuple[str, Market] | None, int] = {key: quota.left for key, quota in counted.items()}

    def has_room(entry: InstanceType, market: Market) -> bool:
        return entry.vcpus * max(1, instances.minimum) <= left.get(quota_key(entry.name, market), 0)

    return [
        entry
        for entry in offered
        if _boots(preflight, entry) and any(has_room(entry, market) for market in instances.markets)
    ]


def _boots(preflight: Preflight, entry: InstanceType) -> bool:
    """True if an image is there for a type: one that the recipe names is of one architecture."""
    image: Image | None = preflight.answers.get("image")
    if preflight.recipe.instances.image == "auto" or image is None or not image.architecture:
        return True
    return image.architecture in entry.architectures


def _rank(recipe: Recipe, entry: InstanceType) -> tuple[bool, float, float]:
    """Return the order: what suits the workload, then the most peak TFLOPS and the most memory."""
    return (not suits_workload(recipe, entry), -(entry.peak_tflops or 0.0), -entry.memory_gib)
