"""Texts for people and agents: `dlcloud recipes` and `schema`, and the skill for coding agents."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from dlcloud.analysis.transfer import results_schema
from dlcloud.app.terminal.screen import say
from dlcloud.recipe.recipe import Recipe, read_recipe, recipe_schema
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.resources.texts import recipe_names, recipe_text, template
from dlcloud.system.files import write_file

SKILL_FOLDERS = (".claude/skills", ".agents/skills")
"""Folders of a home in which coding agents look for skills: Claude Code, and Codex with others."""


def print_recipes(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    if name:
        say(recipe_text(name)[0], end="")
        return
    texts = {name: recipe_text(name)[0] for name in recipe_names()}
    recipes = {name: (read_recipe(text, f"{name}.yaml"), text) for name, text in texts.items()}
    say(render(recipes_report(recipes), Format(output)))


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


def print_schema(*, document: str) -> None:
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    say(json.dumps(recipe_schema() if document == "recipe" else results_schema(), indent=2))


def print_skill() -> None:
    """Print what an agent needs to use dlcloud, as a skill: Markdown with a name and a description."""
    say(template("skill.md"), end="")


def install_skill() -> None:
    """Write the skill to the folders of this user in which coding agents look."""
    for folder in SKILL_FOLDERS:
        path = Path.home() / folder / "dlcloud" / "SKILL.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, template("skill.md"), mode=0o644)
        say(str(path))
