"""Recipes as commands read them, with what the chosen profile adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlcloud.app.profiles import chosen_profile
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.profile import apply_profile, merge
from dlcloud.recipe.recipe import Recipe, RecipeFile, read_recipe, with_name
from dlcloud.recipe.requirements_file import include_requirements
from dlcloud.resources.texts import LARGEST_RECIPE, recipe_text

SCRIPTS = {".py", ".sh", ".ipynb"}
"""Endings of files that `dlcloud init` writes a recipe for, or that are none."""


def read_recipe_file(name: str) -> RecipeFile:
    """Read a recipe, a file or a bundled one, with what the chosen profile adds to it.

    Raises:
        RecipeError: Either is at fault.
    """
    if Path(name).suffix in SCRIPTS and Path(name).is_file():
        raise RecipeError(f"{name} is a script, not a recipe", f"dlcloud init {name} writes its recipe")
    text, path = read_recipe_text(name)
    file = str(path or name)
    return _completed(read_recipe(text, file), text, file, str(path.absolute() if path else ""))


def file_of_recipe(recipe: Recipe) -> RecipeFile:
    """Return a recipe that was not read from a file as if it had been; its paths are of the current folder.

    Raises:
        RecipeError: The chosen profile is at fault.
    """
    text = recipe.to_yaml()
    return _completed(read_recipe(text, recipe.name), text, recipe.name, "")


def _completed(recipe: Recipe, text: str, file: str, path: str) -> RecipeFile:
    """Return a recipe with what the profile adds; `file` is its name in messages, `path` its file."""
    recipe, merged = with_profile(recipe, text, file)
    return RecipeFile(recipe=recipe, text=merged, path=path, profile=profile_of(recipe), written=text)


def read_recipe_text(name: str) -> tuple[str, Path | None]:
    """Return the text of a recipe with its name and the packages of a file that it names, and its path.

    Raises:
        RecipeError: One of the files is missing or at fault.
    """
    text, path = recipe_text(name)
    if path is None:
        return text, path
    whole = include_requirements(text, str(path), lambda file: _beside(path, file))
    return with_name(whole, str(path)), path


def _beside(recipe: Path, name: str) -> str | None:
    """Return the text of a file beside a recipe; None if there is none that can be read."""
    try:
        with (recipe.parent / name).open("rb") as file:
            return file.read(LARGEST_RECIPE).decode("utf-8", "replace")
    except OSError:
        return None


def with_profile(recipe: Recipe, text: str, file: str) -> tuple[Recipe, str]:
    """Return a recipe with what the chosen profile adds to it, and its text; `file` is its name in messages.

    Raises:
        RecipeError: Either is at fault.
    """
    return apply_profile(text, recipe, chosen_profile()[1], file)


def profile_defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a recipe, with what the chosen profile adds to them."""
    profile = chosen_profile()[1]
    if profile is None or profile.cloud != keys.get("cloud", "aws"):
        return dict(keys)
    return merge(keys, profile.defaults)


def profile_of(recipe: Recipe) -> str:
    """Return the name of the profile that a recipe's cluster is launched with; empty without one."""
    name, profile = chosen_profile()
    return name if profile is not None and profile.cloud == recipe.cloud else ""
