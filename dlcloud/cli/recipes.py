"""The commands about recipes as texts: `init`, `validate` and `recipes`.

The use cases are in `dlcloud/app/init.py` and `dlcloud/app/recipes.py`. They ask no cloud.
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
@click.argument("file", type=click.Path(path_type=Path), default=Path("recipe.yaml"))
@click.argument("arguments", nargs=-1)
@click.option("-m", "--module", default="", metavar="MODULE", help="Python module that `python3 -m` runs.")
@click.option(
    "--trial/--no-trial",
    default=None,
    help="Run the program in a copy of its folder, for ten seconds from its first output.",
)
@plain_output_option("Format of what is printed about it.")
def init(*, file: Path, arguments: tuple[str, ...], module: str, trial: bool | None, output: str) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a program.

    FILE may be a Python script, a notebook, a shell script, a Makefile, or a package with __main__.py.
    Its ARGUMENTS follow after --. The recipe has the packages of requirements.txt, or those that are
    imported, as they are installed here. With --trial the program runs here, for ten seconds from its
    first output, to see how its throughput is read. The schema for editors is written next to the recipe.
    """
    from dlcloud.app.init import init as write_recipe

    if module and file != Path("recipe.yaml"):
        file, arguments = Path("recipe.yaml"), (str(file), *arguments)
    write_recipe(file=file, module=module, arguments=arguments, trial=trial, output=output)


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
