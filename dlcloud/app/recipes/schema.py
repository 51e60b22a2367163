"""`dlcloud schema`: the JSON Schema of recipes, and of exported results."""

import json

from dlcloud.app.terminal.screen import say
from dlcloud.recipe.recipe import recipe_schema
from dlcloud.results.transfer import results_schema


def run(*, document: str) -> None:
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    say(json.dumps(recipe_schema() if document == "recipe" else results_schema(), indent=2))
