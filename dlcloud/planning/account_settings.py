"""What a plan says of the account's own settings: profile, key, tags, boundary."""

from dlcloud.model.instance import Market, spot_key_grant
from dlcloud.recipe.recipe import Recipe


def describe_account(recipe: Recipe) -> list[str]:
    """Return a line for each setting of the account that the recipe uses, and what it needs."""
    instances, lines = recipe.instances, []
    if instances.profile:
        lines.append(f"instances have the instance profile {instances.profile}: every login has its role")
    if instances.kms_key:
        lines.append(f"root volumes are encrypted by {instances.kms_key}")
    if instances.kms_key and Market.SPOT in instances.markets:
        lines.append(f"spot: {spot_key_grant(recipe.region, instances.kms_key)}")
    if recipe.tags:
        tags = ", ".join(f"{key}={value}" for key, value in sorted(recipe.tags.items()))
        lines.append(f"everything is tagged {tags}")
    if recipe.permissions_boundary:
        lines.append(f"roles have the permissions boundary {recipe.permissions_boundary}")
    return lines
