"""A recipe as users write it in YAML: one module per key, `recipe.py` for the whole."""

from dlcloud.core.recipe.data import DataItem
from dlcloud.core.recipe.instances import Count, Instances
from dlcloud.core.recipe.recipe import Budget, Keep, Recipe, read_recipe, recipe_schema
from dlcloud.core.recipe.workload import Elastic, Setup, Workload

__all__ = [
    "Budget",
    "Count",
    "DataItem",
    "Elastic",
    "Instances",
    "Keep",
    "Recipe",
    "Setup",
    "Workload",
    "read_recipe",
    "recipe_schema",
]
