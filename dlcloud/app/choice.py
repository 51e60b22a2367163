"""The instance types of a recipe that states requirements: chosen from what the account is offered.

The recipe that a command continues with names the chosen types, in its text too. Its hash is that of the
requirements, so that an interrupted `up` finds its cluster at other prices.
"""

from collections.abc import Sequence
from dataclasses import replace

from dlcloud.app.context import Context
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price
from dlcloud.planning.choice import Choice, match_types
from dlcloud.recipe.instances import Requirements
from dlcloud.recipe.recipe import Recipe, RecipeFile


def with_chosen_types(context: Context, file: RecipeFile) -> tuple[RecipeFile, tuple[str, ...]]:
    """Return a recipe that names its types, and what its plan states of the choice.

    Raises:
        RecipeError, CapacityError: A word is unknown, or no type is like that.
    """
    recipe, instances = file.recipe, file.recipe.instances
    if not instances.describe():
        return file, ()
    choice = choose_types(
        context, instances, cloud=recipe.cloud, region=recipe.region, markets=instances.rounds
    )
    recipe = recipe.with_types(choice.names)
    return replace(file, recipe=recipe, text=recipe.to_yaml()), choice.notes


def choose_types(
    context: Context, wanted: Requirements, *, cloud: str, region: str, markets: Sequence[Market]
) -> Choice:
    """Choose among what the Region offers the account; from the bundled tables if EC2 does not answer.

    Raises:
        RecipeError, CapacityError: A word is unknown, or no type is like that.
    """
    notes: tuple[str, ...] = ()
    try:
        ec2 = context.clouds.cloud(cloud, region)
        matches = match_types(wanted, ec2.types.offered())
        prices = ec2.prices.find(matches.names, markets) if matches.names else []
    except CloudError as error:
        notes = (f"types and prices are those of the bundled tables: {error.message}",)
        matches = match_types(wanted, Catalog().every())
        prices = _bundled_prices(matches.names, region)
    choice = matches.cheapest(prices, markets)
    return replace(choice, notes=(*choice.notes, *notes))


def with_bundled_types(recipe: Recipe) -> Recipe:
    """Return a recipe that names its types, chosen from the bundled tables: nothing is asked.

    Raises:
        RecipeError, CapacityError: A word is unknown, or no type is like that.
    """
    if not recipe.instances.describe():
        return recipe
    matches = match_types(recipe.instances, Catalog().every())
    prices = _bundled_prices(matches.names, recipe.region)
    return recipe.with_types(matches.cheapest(prices, recipe.instances.rounds).names)


def _bundled_prices(names: Sequence[str], region: str) -> list[Price]:
    catalog = Catalog()
    prices = (catalog.on_demand_price(name, region) for name in names)
    return [price for price in prices if price is not None]
