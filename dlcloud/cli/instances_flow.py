"""The walk of `dlcloud instances`: filter the bundled table, price it, sort it."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import click

from dlcloud.cli.context import Context
from dlcloud.cloud.catalog import Catalog
from dlcloud.core.errors import RecipeError
from dlcloud.core.instance import InstanceType, Market, Price
from dlcloud.core.successors import KnownType, successors
from dlcloud.report.instances import Offer, instances_report
from dlcloud.report.table import Format, render

# What people call flags, and the words of the table.
_FLAGS = {
    "avx512_vnni": "vnni",
    "avx512f": "avx512",
    "avx512_bf16": "bf16",
    "amx_int8": "amx",
    "amx_tile": "amx",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What types are looked for; an empty wish is none."""

    types: tuple[str, ...]
    gpu: str
    cpu_flags: tuple[str, ...]
    max_usd: float | None
    retired: bool

    def takes(self, each: InstanceType) -> bool:
        """Tell whether a type fits, its price aside."""
        named = [each.name == word or each.name.partition(".")[0] == word for word in self.types]
        if self.types and not any(named):
            return False
        if each.retired and not (self.retired or self.types):
            return False
        flags = {_FLAGS.get(flag.lower(), flag.lower()) for flag in self.cpu_flags}
        return flags <= set(each.cpu_isa) and self._takes_gpu(each)

    def _takes_gpu(self, each: InstanceType) -> bool:
        match self.gpu.lower():
            case "":
                return True
            case "none":
                return each.gpu is None
            case "any":
                return each.gpu is not None
            case name:
                return each.gpu is not None and name in each.gpu.name.lower()


def list_instances(context: Context, wish: Wish, *, region: str, live: str, output: str) -> None:
    """Print the types that fit.

    Args:
        context: The collaborators.
        wish: Which.
        region: Whose prices.
        live: The cloud to ask for prices; empty for the bundled table.
        output: How.

    Raises:
        RecipeError: A type that was named is not known.
        CloudError: AWS was to be asked for prices, and refused.
    """
    catalog = Catalog()
    every = [KnownType(hardware=each, price=catalog.on_demand_price(each.name, region)) for each in catalog]
    _refuse_unknown(wish, every)
    chosen = [each for each in every if wish.takes(each.hardware)]
    prices = _live_prices(context, chosen, region, live) if live else []
    offers = [_offer(each, every, prices) for each in chosen]
    if wish.max_usd is not None:
        limit = Decimal(str(wish.max_usd))
        offers = [each for each in offers if each.on_demand and each.on_demand.hourly_usd <= limit]
    offers.sort(key=lambda each: (-(each.tflops_per_usd or Decimal(0)), each.hardware.name))
    click.echo(render(instances_report(offers, region=region), Format(output)))


def _refuse_unknown(wish: Wish, every: Sequence[KnownType]) -> None:
    names = {each.hardware.name for each in every}
    families = {name.partition(".")[0] for name in names}
    for word in wish.types:
        if word not in names | families:
            near = ", ".join(each.hardware.name for each in successors(word, every))
            raise RecipeError(
                f"no instance type {word} is known", f"like it: {near}" if near else "dlcloud instances"
            )


def _live_prices(context: Context, chosen: Sequence[KnownType], region: str, cloud: str) -> list[Price]:
    names = [each.hardware.name for each in chosen if not each.hardware.retired]
    if not names:
        return []
    return context.cloud(cloud, region).prices(names, [Market.ON_DEMAND, Market.SPOT])


def _offer(each: KnownType, every: Sequence[KnownType], prices: Sequence[Price]) -> Offer:
    mine = [price for price in prices if price.instance_type == each.hardware.name]
    near = successors(each.hardware.name, every) if each.hardware.retired else []
    return Offer(
        hardware=each.hardware,
        on_demand=next((price for price in mine if price.market is Market.ON_DEMAND), each.price),
        spot=min(
            (price for price in mine if price.market is Market.SPOT),
            key=lambda price: price.hourly_usd,
            default=None,
        ),
        successors=tuple(each.hardware.name for each in near),
    )
