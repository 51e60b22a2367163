"""`dlcloud schema`: the JSON Schema of recipes, and of exported results."""

import click

from dlcloud.cli.invoke import invoke


@click.command("schema")
@click.argument("document", type=click.Choice(["recipe", "results"]), default="recipe")
@click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", help="It is JSON either way."
)
def command(*, document: str, output: str) -> None:  # noqa: ARG001  it is JSON either way
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    invoke("dlcloud.app.recipes.schema:run", None, document=document)
