"""The bundled recipes as a table."""

import re
from collections.abc import Mapping

from dlcloud.recipe.recipe import Recipe
from dlcloud.report.table import Report, Section


def recipes_report(recipes: Mapping[str, tuple[Recipe, str]]) -> Report:
    """Return the recipes, by name, each with its text, whose first comment says what it is for."""
    records = [
        {
            "recipe": name,
            "cloud": recipe.cloud,
            "types": " ".join(recipe.instances.types),
            "about": _first_sentence(text),
        }
        for name, (recipe, text) in recipes.items()
    ]
    section = Section(
        heading="",
        titles=("recipe", "cloud", "what it does"),
        rows=[(row["recipe"], row["cloud"], row["about"]) for row in records],
        notes=["dlcloud recipes NAME prints one; dlcloud up NAME --dry-run plans it"],
    )
    return Report(command="recipes", records=list(records), sections=[section], empty="")


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment that a text begins with."""
    comment = re.match(r"(?:#.*\n)*", text)
    words = " ".join(line.lstrip("# ") for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<=[A-Za-z)])[.:] ", words, maxsplit=1)[0].rstrip(".")
