"""`dlcloud schema`: the JSON Schema of recipes."""

import json

import click


@click.command(
    "schema",
    short_help="Print the JSON Schema of a recipe.",
    help="Print the JSON Schema of a recipe, for editors.",
)
def command() -> None:
    """Print it."""
    from dlcloud.core.recipe import recipe_schema

    click.echo(json.dumps(recipe_schema(), indent=2))
