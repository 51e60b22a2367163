"""`dlcloud init`: a recipe to start from, or one for a script of the user's."""

from pathlib import Path

import click

from dlcloud.model.errors import RecipeError


@click.command("init")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("recipe.yaml"))
@click.option("--trial/--no-trial", default=None, help="Run a script for ten seconds, to see what it prints.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="Of what it wrote.")
def command(*, file: Path, trial: bool | None, output: str) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a Python script.

    For train.py it writes train.yaml beside it: the packages that the script imports, pinned as they are
    installed here or in requirements.txt; what it sends; and how its throughput is read, from what it prints.
    With --trial the script runs here for ten seconds to see that; on a terminal it asks. The schema for
    editors is written beside the recipe.
    """
    from dlcloud.cli.init_script import recipe_of_script, trial_for
    from dlcloud.recipe.script_recipe import SCHEMA_FILE, SCHEMA_LINE
    from dlcloud.resources.texts import template

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
    import json

    from dlcloud.recipe.recipe import recipe_schema
    from dlcloud.report.files import report_file

    with report_file(file) as draft:
        draft.write_text(json.dumps(recipe_schema(), indent=1) + "\n", "utf-8")


def _print(file: Path, notes: list[str], output: str) -> None:
    from dlcloud.report.table import envelope

    following = f"dlcloud up {file} --dry-run"
    if output == "json":
        click.echo(envelope("init", {"result": {"file": str(file), "notes": notes, "next": following}}))
        return
    for note in notes:
        click.echo(f"{note}", err=True)
    click.echo(f"wrote {file}; next: {following}")
