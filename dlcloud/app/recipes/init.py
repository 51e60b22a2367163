"""`dlcloud init`: a recipe to start from, or one for a script of the user's."""

import json
from pathlib import Path

from dlcloud.app.recipes.init_script import recipe_of_script, trial_for
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import recipe_schema
from dlcloud.recipe.script_recipe import SCHEMA_FILE, SCHEMA_LINE
from dlcloud.report.files import report_file
from dlcloud.report.table import envelope
from dlcloud.resources.texts import template


def run(*, file: Path, trial: bool | None, output: str) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a Python script."""
    notes: list[str] = []
    if file.suffix == ".py":
        target = file.with_suffix(".yaml")
        _refuse_existing(target)
        text, notes = recipe_of_script(file, trial_for(file, allowed=trial))
    else:
        target = file
        text = SCHEMA_LINE.format(SCHEMA_FILE) + template("recipe.yaml")
    _write_new(target, text)
    _write_schema(target.with_name(SCHEMA_FILE))
    _print(target, notes, output)


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise RecipeError(f"{file} exists and was not changed", "remove it, or dlcloud init ANOTHER.yaml")


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError as error:
        raise RecipeError(f"{file} exists and was not changed", "dlcloud init ANOTHER.yaml") from error
    except OSError as error:
        raise RecipeError(f"cannot write {file}: {error.strerror}") from error


def _write_schema(file: Path) -> None:
    """Write the schema that the recipe's first line names; one that is there is replaced."""
    with report_file(file) as draft:
        draft.write_text(json.dumps(recipe_schema(), indent=1) + "\n", "utf-8")


def _print(file: Path, notes: list[str], output: str) -> None:

    following = f"dlcloud up {file} --dry-run"
    if output == "json":
        say(envelope("init", {"result": {"file": str(file), "notes": notes, "next": following}}))
        return
    for note in notes:
        say(f"{note}", err=True)
    say(f"wrote {file}; next: {following}")
