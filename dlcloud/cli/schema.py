"""`dlcloud schema`: the JSON Schema of recipes, and of exported results."""

import json

import click


@click.command("schema")
@click.argument("document", type=click.Choice(["recipe", "results"]), default="recipe")
@click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", help="It is JSON either way."
)
def command(*, document: str, output: str) -> None:  # noqa: ARG001  every command takes -o
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    from dlcloud.recipe.recipe import recipe_schema
    from dlcloud.results.transfer import results_schema

    click.echo(json.dumps(recipe_schema() if document == "recipe" else results_schema(), indent=2))
