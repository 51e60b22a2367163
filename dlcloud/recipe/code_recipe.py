"""Recipes that are built in Python: the same keys, checked as a written recipe is."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import yaml
from pydantic import BaseModel

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.document import read_model
from dlcloud.recipe.recipe import Recipe


class CodeRecipe(Recipe):
    """A recipe built in Python: `Recipe(name="sweep", instances={"types": ["c7i.large"]}, workload={...})`.

    The keys are those of a recipe in YAML, mappings and lists stand for its parts, and numbers are read as if
    they were written there. Paths are relative to the current folder.

    Raises:
        RecipeError: All faults at once, with the paths of their keys.
    """

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  as any key of a recipe
        content = {name: _written(value) for name, value in values.items() if value is not None}
        try:
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        except yaml.YAMLError as error:
            raise RecipeError(f"a recipe consists of texts, numbers, lists and mappings: {error}") from error
        recipe, faults = read_model(Recipe, text)
        if recipe is None:
            message = "\n".join(fault.describe() for fault in faults)
            raise RecipeError(message, "dlcloud schema prints what a recipe may say")
        super().__init__(**{name: getattr(recipe, name) for name in recipe.model_fields_set})


def _written(value: object) -> object:
    """Return a value as YAML has it: plain mappings, lists and scalars."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(value, Mapping):
        return {str(name): _written(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_written(inner) for inner in value]
    if value is None:
        return None
    plain = value.value if isinstance(value, Enum) else value
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
