"""`dlcloud recipes`: the bundled recipes."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option


@click.command("recipes")
@click.argument("name", default="")
@output_option
def command(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    invoke("dlcloud.app.recipes.bundled:run", None, name=name, output=output)
