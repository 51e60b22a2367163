"""The environment of a recipe's program, with the values of its secrets from wherever they are."""

import os
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.launch.secret_values import SecretLookup
from dlcloud.launch.user_files import check_files
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Warned
from dlcloud.model.secret_source import SourceKind
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.secrets import read_source
from dlcloud.recipe.sent_files import IGNORE_FILE


def environment_of(context: Context, recipe: Recipe, folder: Path) -> JobEnvironment:
    """Return the environment of a recipe's program; files of secrets are relative to `folder`.

    Raises:
        RecipeError, CloudError: Values are missing, or a file with one would be sent with the program.
    """
    lookup = SecretLookup(
        environ=os.environ,
        folder=folder,
        fetch=lambda source: context.clouds.secret_values(recipe.cloud, recipe.region).fetch(source),
    )
    _refuse_sent_secrets(recipe, folder)
    environment = lookup.environment_of(recipe.workload)
    for name in environment.unmasked:
        context.emit(Warned(message=f"secret {name} is too short to be masked where the program prints it"))
    return environment


def _refuse_sent_secrets(recipe: Recipe, folder: Path) -> None:
    """Refuse a secret's file among the files that are sent, where it would stay."""
    workload = recipe.workload
    sources = [read_source(text) for text in workload.secrets.values()]
    files = [
        folder / Path(source.location).expanduser() for source in sources if source.kind is SourceKind.FILE
    ]
    if not files or workload.files is None:
        return
    sent = {entry.path for entry in check_files(folder / workload.files).entries}
    for file in files:
        if file.resolve() in sent:
            raise RecipeError(
                f"{file} holds a secret and would be sent with workload.files",
                f"keep it elsewhere, or name it in {IGNORE_FILE}",
            )
