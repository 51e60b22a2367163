"""`dlcloud recipes`: the bundled recipes."""

from dlcloud.app.terminal.screen import say
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.recipes import recipes_report
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import recipe_names, recipe_text


def run(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    if name:
        say(recipe_text(name)[0], end="")
        return
    texts = {name: recipe_text(name)[0] for name in recipe_names()}
    recipes = {name: (read_recipe(text, f"{name}.yaml"), text) for name, text in texts.items()}
    say(render(recipes_report(recipes), Format(output)))
