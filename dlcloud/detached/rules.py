"""Which recipes can be detached, and how one reads on the instance: its files and secrets are elsewhere."""

from collections.abc import Sequence
from typing import Any

import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.model.secret_source import CONTROLLER_PREFIX
from dlcloud.recipe.recipe import Recipe

PUBLIC_PARAMETERS = "/aws/service/"
"""The parameters of SSM that a controller's role may read."""
FILES = "files"
"""The folder beside the recipe on the instance; its content is that of `workload.files` here."""


def relocate_recipe(recipe: Recipe) -> str:
    """Return the text of the recipe as the instance reads it."""
    workload = recipe.workload
    if workload.files is not None:
        workload = workload.model_copy(update={"files": FILES})
    names = {name: f"env:{CONTROLLER_PREFIX}{name}" for name in workload.secrets}
    workload = workload.model_copy(update={"secrets": names})
    relocated = recipe.model_copy(update={"workload": workload})
    content: dict[str, Any] = relocated.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def settle_recipe(recipe: Recipe, image_id: str, groups: Sequence[str]) -> Recipe:
    """Return the recipe with what only its user may look up: a parameter of one's own, groups by their tags.

    Args:
        recipe: The user's.
        image_id: The image of its plan.
        groups: The ids of the user's own security groups, of its plan.
    """
    name, network = recipe.instances.image, recipe.network
    if name.startswith("/") and not name.startswith(PUBLIC_PARAMETERS):
        recipe = recipe.model_copy(
            update={"instances": recipe.instances.model_copy(update={"image": image_id})}
        )
    if network is not None and network.security_groups:
        settled = network.model_copy(update={"security_groups": list(groups)})
        recipe = recipe.model_copy(update={"network": settled})
    return recipe


def check_detachable(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run without a launcher.

    Raises:
        RecipeError: It has no on-demand instance, its instances have a profile, it reads a folder of this
            machine, or its rehearsal ends the coordinator.
    """
    if recipe.instances.market != "on-demand" and not recipe.instances.on_demand_base:
        raise RecipeError(
            "--detach: an on-demand instance is to control the others, and the recipe may have none",
            "instances.on_demand_base: 1 makes one of them on-demand",
        )
    if recipe.instances.profile:
        raise RecipeError(
            f"--detach: the coordinator gets a role of its own beside {recipe.instances.profile}",
            "an instance has one profile: leave one of the two out",
        )
    if any(not item.is_remote for item in recipe.data):
        raise RecipeError(
            "--detach: data from a folder of this machine is not there for later instances",
            "copy it to a bucket: aws s3 sync FOLDER s3://BUCKET/PREFIX, and name that in data",
        )
    if any(incident.kill == "coordinator" for incident in recipe.rehearsal):
        raise RecipeError(
            "--detach: the rehearsal ends the coordinator, and the controller would end with it",
            "leave kill: coordinator out, or run it without --detach",
        )
