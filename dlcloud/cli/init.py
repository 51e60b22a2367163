"""`dlcloud init`: a recipe to start from."""

from pathlib import Path

import click

from dlcloud.core.errors import RecipeError


@click.command("init")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("recipe.yaml"))
def command(file: Path) -> None:
    """Write a commented recipe to FILE (recipe.yaml) to start from."""
    from dlcloud.resources.texts import template

    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(template("recipe.yaml"))
    except FileExistsError as error:
        raise RecipeError(f"{file} exists and was not changed", "dlcloud init ANOTHER.yaml") from error
    except OSError as error:
        raise RecipeError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"wrote {file}; next: dlcloud up {file} --dry-run")
