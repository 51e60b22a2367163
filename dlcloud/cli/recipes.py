"""The commands about recipes as texts: `init`, `validate` and `recipes`.

The use cases are in `dlcloud/app/recipes`. They ask no cloud.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.options import output_option, override_options, plain_output_option, verbose_option

if TYPE_CHECKING:
    from dlcloud.recipe.overrides import Overrides

commands = click.Group()


@commands.command("init")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("recipe.yaml"))
@click.option("--trial/--no-trial", default=None, help="Run a script for ten seconds, to see what it prints.")
@plain_output_option("Format of what is printed about it.")
def init(*, file: Path, trial: bool | None, output: str) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a Python script.

    For train.py it writes train.yaml next to it: the packages that the script imports, pinned as they are
    installed here or in requirements.txt; what it sends; and how its throughput is read, from what it prints.
    With --trial the script runs here for ten seconds to see that; on a terminal it asks. The schema for
    editors is written next to the recipe.
    """
    from dlcloud.app.recipes import init as write_recipe

    write_recipe(file=file, trial=trial, output=output)


@commands.command("validate")
@click.argument("recipe", shell_complete=complete_recipes)
@override_options
@output_option
@verbose_option
def validate(*, recipe: str, overrides: "Overrides", output: str, verbose: bool) -> None:
    """Check RECIPE without credentials or network: its keys, the files that it names, its script.

    Every fault is printed with its line. What only an account can tell (quota, prices, images) is checked by
    `dlcloud plan` and `dlcloud doctor`.
    """
    from dlcloud.app.clusters.validate import run
    from dlcloud.app.context import Context

    with Context("validate", verbose=verbose) as context:
        run(context, recipe=recipe, overrides=overrides, output=output)


@commands.command("recipes")
@click.argument("name", default="")
@output_option
def recipes(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    from dlcloud.app.recipes import print_recipes

    print_recipes(name=name, output=output)
