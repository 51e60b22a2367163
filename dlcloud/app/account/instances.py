"""`dlcloud instances`: hardware and prices of instance types."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import InstanceType, Market, Price
from dlcloud.planning.fit import KnownType, successors
from dlcloud.report.instances import TypeOffer, instances_report
from dlcloud.report.table import Format, render

# Names of /proc/cpuinfo, and the words of the table.
_FLAGS = {
    "avx512_vnni": "vnni",
    "avx512f": "avx512",
    "avx512_bf16": "bf16",
    "amx_int8": "amx",
    "amx_tile": "amx",
}


def run(
    context: Context,
    *,
    types: Sequence[str] = (),
    gpu: str = "",
    cpu_flags: Sequence[str] = (),
    max_hourly_usd: float | None = None,
    retired: bool = False,
    region: str,
    live: bool,
    cloud: str,
    output: str,
) -> None:
    """List instance types, the cheapest TFLOPS first; with `types`, only those (c7i, p3.2xlarge).

    Args:
        context: The collaborators.
        types: Names or families.
        gpu: Part of a GPU's name, `any` or `none`.
        cpu_flags: All of them are required.
        max_hourly_usd: The highest price of an hour on demand.
        retired: Include types that AWS no longer offers; types that are named are shown in any case.
        region: The Region of the prices.
        live: Ask AWS for prices, and for types that the bundled table lacks.
        cloud: Which cloud `live` asks.
        output: The format.
    """
    catalog = Catalog()
    types_by_name = {hardware.name: hardware for hardware in catalog}
    if live:
        patterns = [word if "." in word else f"{word}.*" for word in types]
        types_by_name |= {
            entry.name: entry for entry in context.clouds.cloud(cloud, region).types.offered(patterns)
        }
    offered = [
        KnownType(hardware=hardware, price=catalog.on_demand_price(hardware.name, region))
        for hardware in types_by_name.values()
    ]
    _refuse_unknown(types, offered, live=live)

    flags = {_FLAGS.get(flag.lower(), flag.lower()) for flag in cpu_flags}

    def is_chosen(hardware: InstanceType) -> bool:
        if types and not {hardware.name, _family(hardware.name)} & set(types):
            return False
        if hardware.retired and not (retired or types):
            return False
        return flags <= set(hardware.cpu_isa) and _has_gpu(hardware, gpu.lower())

    chosen = [candidate for candidate in offered if is_chosen(candidate.hardware)]
    prices = _live_prices(context, chosen, region, cloud) if live else []
    offers = [_offer(candidate, offered, prices) for candidate in chosen]
    if max_hourly_usd is not None:
        most = Decimal(str(max_hourly_usd))
        offers = [offer for offer in offers if offer.on_demand and offer.on_demand.hourly_usd <= most]
    offers.sort(key=lambda offer: (-(offer.tflops_per_usd or Decimal(0)), offer.hardware.name))
    say(render(instances_report(offers, region=region), Format(output)))


def _has_gpu(hardware: InstanceType, name: str) -> bool:
    match name:
        case "":
            return True
        case "none":
            return hardware.accelerator is None
        case "any":
            return hardware.gpu is not None
        case _:
            return hardware.accelerator is not None and name in hardware.accelerator.name.lower()


def _family(name: str) -> str:
    return name.partition(".")[0]


def _refuse_unknown(types: Sequence[str], offered: Sequence[KnownType], *, live: bool) -> None:
    names = {candidate.hardware.name for candidate in offered}
    for word in types:
        if word not in names | {_family(name) for name in names}:
            near = ", ".join(candidate.hardware.name for candidate in successors(word, offered))
            hint = f"like it: {near}" if near else "dlcloud instances"
            beyond = "" if live else "; --live asks EC2 for types that the bundled table lacks"
            raise RecipeError(f"no instance type {word} is known", hint + beyond)


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
