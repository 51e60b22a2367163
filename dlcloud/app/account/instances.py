"""`dlcloud instances`: hardware and prices of instance types."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.api.partitions import check_region
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market, Price
from dlcloud.planning.choice import describe_lacking, is_named, lacks, refuse_unknown_words
from dlcloud.planning.fit import KnownType, successors
from dlcloud.recipe.overrides import Overrides
from dlcloud.report.instances import TypeOffer, instances_report
from dlcloud.report.table import Format, render

NO_NEEDS: Mapping[str, Any] = MappingProxyType({})


def run(
    context: Context,
    *,
    types: Sequence[str] = (),
    needs: Mapping[str, Any] = NO_NEEDS,
    retired: bool = False,
    region: str,
    live: bool,
    cloud: str,
    output: str,
) -> None:
    """List instance types, the cheapest TFLOPS first; without anything asked for, those known well.

    Args:
        context: The collaborators.
        types: Names, patterns (c7*.xlarge) or families (c7i).
        needs: What types must have, by keys of a recipe.
        retired: Include types that AWS no longer offers; types that are named are shown in any case.
        region: The Region of the prices.
        live: Ask AWS for prices, and for types that the bundled table lacks.
        cloud: Which cloud `live` asks.
        output: The format.

    Raises:
        RecipeError: A word is unknown, or there is no such Region.
    """
    check_region(region)
    named = tuple(word if "." in word else f"{word}.*" for word in types)
    requirements = Overrides(types=named, needs=needs).requirements()
    catalog = Catalog()
    listed = [*(catalog.every() if types or needs else catalog)]
    here = context.clouds.cloud(cloud, region).types.offered(requirements.types) if live else []
    try:
        refuse_unknown_words(requirements, [*listed, *here])
    except RecipeError as error:
        error.hint += "" if live else "; --live asks EC2 for types that the bundled table lacks"
        raise
    if live:
        listed = [*(one for one in listed if one.retired), *here]
    offered = [
        KnownType(hardware=hardware, price=catalog.on_demand_price(hardware.name, region))
        for hardware in {one.name: one for one in listed}.values()
    ]
    chosen = [
        candidate
        for candidate in offered
        if not types or is_named(candidate.hardware.name, requirements.types)
        if not candidate.hardware.retired or retired or types
        if not any(lacks(requirements, candidate.hardware))
    ]
    prices = _live_prices(context, chosen, region, cloud) if live else []
    matches = offers = [_offer(candidate, offered, prices) for candidate in chosen]
    if (most := requirements.max_usd_per_hour) is not None:
        offers = [offer for offer in matches if offer.on_demand and offer.on_demand.hourly_usd <= most]
    offers.sort(key=lambda offer: (-(offer.tflops_per_usd or Decimal(0)), offer.hardware.name))
    report = instances_report(offers, region=region)
    if not offers:
        named_types = [one.hardware for one in offered if not types or is_named(one.hardware.name, named)]
        dear = [KnownType(hardware=offer.hardware, price=offer.on_demand) for offer in matches]
        empty = describe_lacking(requirements, named_types, dear)
        empty = empty if named_types else f"{region} offers no {' '.join(named)}"
        report = replace(report, empty=empty)
    say(render(report, Format(output)))


def _live_prices(context: Context, chosen: Sequence[KnownType], region: str, cloud: str) -> list[Price]:
    names = [candidate.hardware.name for candidate in chosen if not candidate.hardware.retired]
    if not names:
        return []
    return context.clouds.cloud(cloud, region).prices.find(names, [Market.ON_DEMAND, Market.SPOT])


def _offer(candidate: KnownType, offered: Sequence[KnownType], prices: Sequence[Price]) -> TypeOffer:
    hardware = candidate.hardware
    own = [price for price in prices if price.instance_type == hardware.name]
    spot = [price for price in own if price.market is Market.SPOT]
    near = successors(hardware.name, offered) if hardware.retired else []
    return TypeOffer(
        hardware=hardware,
        on_demand=next((price for price in own if price.market is Market.ON_DEMAND), candidate.price),
        spot=min(spot, key=lambda price: price.hourly_usd, default=None),
        successors=tuple(successor.hardware.name for successor in near),
    )
