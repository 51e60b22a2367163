"""`dlcloud predict`: what a measured job would do on all other CPU types of a region."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from dlcloud.app.context import Context
from dlcloud.app.results.rows import load_rows, refuse_unknown
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.prediction.description import read_description
from dlcloud.prediction.measured_types import Reference, TypeTable
from dlcloud.prediction.offers import predict_jobs
from dlcloud.report.prediction import prediction_report
from dlcloud.report.table import Format, render
from dlcloud.resources.type_table import type_table
from dlcloud.store.selection import Selection

FEW = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the options say of a job; nothing by default."""

    parameters: str = ""
    tokens: int | None = None
    generates: bool = False

    def reference(self) -> Reference | None:
        """Return what the job resembles; None if nothing is said.

        Raises:
            RecipeError: The options contradict each other.
        """
        return read_description(self.parameters, self.tokens, generates=self.generates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Whose types at which price: AWS's own prices of today with `live`, else the bundled table's."""

    region: str
    market: str
    live: bool


def run(
    context: Context,
    *,
    selection: Selection,
    offers: Offers,
    every: bool,
    description: Description,
    output: str,
) -> None:
    """Print predicted throughput and USD per million items of the stored results' jobs on all types."""
    description.reference()  # its faults come first
    store = context.measurements
    refuse_unknown(store, selection)
    table = type_table()
    rows = load_rows(store, selection, context.clock.now(), newest=True)
    region, market = offers.region, Market(offers.market)
    prices = prices_of_types(context, table, region, market, live=offers.live) if rows else {}
    jobs = predict_jobs(rows, table, prices, market, description.reference())
    most = len(table.rows) if every else FEW
    report = prediction_report(jobs, region=region, market=market, most=most, as_of=table.as_of)
    say(render(report, Format(output)))


def prices_of_types(
    context: Context, table: TypeTable, region: str, market: Market, *, live: bool
) -> Mapping[str, Mapping[Market, Decimal]]:
    """Return the hourly prices of the region's types: of AWS, or dated ones of the bundled table.

    Raises:
        RecipeError: The bundled table has no prices of that region, or of spot.
    """
    if not live and market is Market.SPOT:
        raise RecipeError("the bundled table has no spot prices", "--live asks AWS")
    prices = (
        context.clouds.cloud("aws", region).prices.find(sorted(table.rows), [*Market])
        if live
        else Catalog().listed_prices(region)
    )
    if not prices:
        raise RecipeError(f"the bundled table has no prices of {region}", "--live asks AWS")
    result: dict[str, dict[Market, Decimal]] = {}
    for price in prices:
        of_type = result.setdefault(price.instance_type, {})
        of_type[price.market] = min(price.hourly_usd, of_type.get(price.market, price.hourly_usd))
    return result
