"""The environment of a recipe's program, with the values of its secrets from wherever they are."""

import os
from pathlib import Path

from dlcloud.cli.context import Context
from dlcloud.core.events import Warned
from dlcloud.core.job_environment import JobEnvironment
from dlcloud.core.recipe import Recipe
from dlcloud.launch.secret_values import SecretLookup


def environment_of(context: Context, recipe: Recipe, folder: Path) -> JobEnvironment:
    """Return the environment of a recipe's program; files of secrets are relative to `folder`.

    Raises:
        RecipeError, CloudError: Values are missing.
    """
    lookup = SecretLookup(
        environ=os.environ,
        folder=folder,
        fetch=lambda source: context.secret_values(recipe.cloud, recipe.region).fetch(source),
    )
    environment = lookup.environment_of(recipe.workload)
    for name in environment.unmasked:
        context.emit(Warned(message=f"secret {name} is too short to be masked where the program prints it"))
    return environment
