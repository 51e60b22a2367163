"""What of a recipe changes when its controller runs on an instance: only where its files lie."""

from typing import Any

import yaml

from dlcloud.core.errors import RecipeError
from dlcloud.core.recipe import Recipe

FILES = "files"
"""The folder beside the recipe, there, that holds what `workload.files` names here."""


def recipe_there(recipe: Recipe) -> str:
    """Return the text of the recipe as the instance reads it."""
    workload = recipe.workload
    if workload.files is not None:
        workload = workload.model_copy(update={"files": FILES})
    moved = recipe.model_copy(update={"workload": workload})
    said: dict[str, Any] = moved.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)


def refuse_detached(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be left alone.

    Raises:
        RecipeError: It is no elastic training.
    """
    if recipe.workload.elastic is None:
        raise RecipeError(
            "--detach: only an elastic training can be left to its own coordinator",
            "add elastic: {} to the workload, or leave the launcher running; a run outlives its connection",
        )
    if any(incident.kill == "coordinator" for incident in recipe.rehearsal):
        raise RecipeError(
            "--detach: the rehearsal ends the coordinator, and the controller would end with it",
            "leave kill: coordinator out, or run it without --detach",
        )
