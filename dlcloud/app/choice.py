"""Regions and instance types of a recipe that leaves them open, chosen from what the account is offered.

The recipe that a command continues with names the chosen types, in its text too. Its hash is that of the
requirements, so that an interrupted `up` finds its cluster at other prices.
"""

from collections.abc import Sequence
from dataclasses import replace

from dlcloud.app.context import Context
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.events import stage
from dlcloud.model.instance import InstanceType, Market, Price
from dlcloud.planning.choice import Choice, match_types
from dlcloud.recipe.instances import Requirements
from dlcloud.recipe.recipe import Recipe, RecipeFile
from dlcloud.system.parallel import all_or_raise, fan_out

MOST_FILTERED = 200
"""Values of one filter. Source: EC2 API reference, "Filter"."""


def with_chosen_types(context: Context, file: RecipeFile) -> tuple[RecipeFile, tuple[str, ...]]:
    """Return a recipe that names its types, and what its plan states of the choice.

    Raises:
        RecipeError, CapacityError: A word is unknown, or no type is like that.
    """
    recipe, instances = file.recipe, file.recipe.instances
    if not instances.describe():
        return file, ()
    regions = regions_of(context, recipe.cloud, recipe.open_regions, recipe.geography)
    choice = choose_types(context, instances, cloud=recipe.cloud, regions=regions, markets=instances.rounds)
    recipe = recipe.with_types(choice.names)
    return replace(file, recipe=recipe, text=recipe.to_yaml()), choice.notes


def regions_of(context: Context, cloud: str, names: Sequence[str], geography: str | None = None) -> list[str]:
    """Return Regions by their names: for `any` those that the account can use.

    Raises:
        CloudError: EC2 does not list them.
        RecipeError: None is of the geography.
    """
    if list(names) != ["any"]:
        return list(names)
    every = context.clouds.cloud(cloud, context.first_region).caller.regions()
    chosen = [name for name in every if geography in {None, name.partition("-")[0]}]
    if not chosen:
        near = ", ".join(sorted({name.partition("-")[0] for name in every}))
        raise RecipeError(f"geography {geography}: the account has no region of it", f"it has {near}")
    return chosen


def choose_types(
    context: Context,
    requirements: Requirements,
    *,
    cloud: str,
    regions: Sequence[str],
    markets: Sequence[Market],
) -> Choice:
    """Choose among what the Regions offer the account, by the price of the cheapest one.

    If EC2 does not answer, the bundled tables count.

    Raises:
        RecipeError, CapacityError: A word is unknown, or no type is like that.
    """
    notes: tuple[str, ...] = ()
    try:
        places = [context.clouds.cloud(cloud, region) for region in regions]
        where = regions[0] if len(regions) == 1 else f"{len(regions)} regions"
        with stage(context.emit, context.clock, f"looking which instance types {where} offer"):
            matches = match_types(requirements, _offered(places))
        names = matches.names
        with stage(context.emit, context.clock, f"looking at the prices of {len(names)} types"):
            lists = all_or_raise(
                fan_out(lambda place: place.prices.find(names, markets), places if names else [])
            )
        prices = [price for listed in lists for price in listed]
    except CloudError as error:
        notes = (f"types and prices are those of the bundled tables: {error.message}",)
        matches = match_types(requirements, Catalog().every())
        prices = _bundled_prices(matches.names, regions[0])
    choice = matches.cheapest(prices, markets)
    return replace(choice, notes=(*choice.notes, *notes))


def _offered(places: Sequence[Ec2Cloud]) -> list[InstanceType]:
    """Return every type that one of the Regions offers.

    Hardware is the same everywhere: all types are described in the first Region, in megabytes of XML, and in
    the others those that the first one lacks.
    """

    def ask(place: Ec2Cloud) -> tuple[list[InstanceType], list[str]]:
        return (place.types.offered(), []) if place is places[0] else ([], place.types.names())

    answers = all_or_raise(fan_out(ask, places, failures=CloudError))
    offered = [*answers[0][0]]
    described = {one.name for one in offered}
    for place, (_, names) in zip(places, answers, strict=True):
        lacking = [name for name in names if name not in described]
        for begin in range(0, len(lacking), MOST_FILTERED):
            offered += place.types.offered(lacking[begin : begin + MOST_FILTERED])
        described.update(lacking)
    return offered


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
