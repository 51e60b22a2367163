"""`dlcloud recipes`: the bundled recipes."""

import click

from dlcloud.cli.options import output_option


@click.command("recipes")
@click.argument("name", default="")
@output_option
def command(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    from dlcloud.recipe.recipe import read_recipe
    from dlcloud.report.recipes import recipes_report
    from dlcloud.report.table import Format, render
    from dlcloud.resources.texts import recipe_names, recipe_text

    if name:
        click.echo(recipe_text(name)[0], nl=False)
        return
    texts = {name: recipe_text(name)[0] for name in recipe_names()}
    recipes = {name: (read_recipe(text, f"{name}.yaml"), text) for name, text in texts.items()}
    click.echo(render(recipes_report(recipes), Format(output)))
