"""`dlcloud init`: a recipe to start from, or one for a script of the user's."""

from pathlib import Path

import click

from dlcloud.cli.invoke import invoke


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
    invoke("dlcloud.app.recipes.init:run", None, file=file, trial=trial, output=output)
