"""What instances cost: AWS's own word where it can be had, cached with its date; else the bundled table."""

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol

from dlcloud.cloud.catalog import Catalog
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import translate_errors
from dlcloud.core.errors import CloudError
from dlcloud.core.instance import Market, Price
from dlcloud.core.protocols import Clock

FRESH = timedelta(days=1)
PRICING_REGION = "us-east-1"  # Source: AWS Price List API, endpoints: us-east-1, eu-central-1, ap-south-1

log = logging.getLogger(__name__)


class PriceCache(Protocol):
    """Remembers on-demand prices between commands."""

    def cached_price(self, instance_type: str, region: str, market: Market) -> Price | None:
        """Return the newest price stored; None if there is none."""

    def cache_price(self, price: Price) -> None:
        """Store a price."""


class Prices:
    """Prices of one region.

    Args:
        clients: The region's clients.
        catalog: The bundled table.
        cache: Where prices asked for are kept; None on the local EC2, where only the table is used.
        clock: Tells how old a cached price is.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, cache: PriceCache | None, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._cache = cache
        self._clock = clock

    def on_demand(self, instance_type: str) -> Price | None:
        """Return the on-demand price: cached for a day, else asked for, else of the bundled table."""
        bundled = self._catalog.on_demand_price(instance_type, self._clients.region)
        if self._cache is None:
            return bundled
        cached = self._cache.cached_price(instance_type, self._clients.region, Market.ON_DEMAND)
        if cached is not None and self._clock.now() - cached.as_of < FRESH:
            return cached
        try:
            asked = self._ask(instance_type)
        except CloudError as error:
            log.warning("no answer from the Pricing API, using an older price: %s", error.message)
            return cached or bundled
        if asked is None:
            return cached or bundled
        self._cache.cache_price(asked)
        return asked

    def spot(self, instance_types: Sequence[str]) -> list[Price]:
        """Return the spot price of each type in each zone now."""
        with translate_errors("looking up spot prices (ec2:DescribeSpotPriceHistory)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_spot_price_history")
                .paginate(
                    InstanceTypes=list(instance_types),
                    ProductDescriptions=["Linux/UNIX"],
                    StartTime=self._clock.now(),
                )
            )
            rows = [row for page in pages for row in page["SpotPriceHistory"]]
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["Timestamp"]):
            newest[row["InstanceType"], row["AvailabilityZone"]] = row
        return [self._spot_price(row) for row in newest.values()]

    def _spot_price(self, row: dict[str, Any]) -> Price:
        return Price(
            instance_type=row["InstanceType"],
            region=self._clients.region,
            market=Market.SPOT,
            hourly_usd=Decimal(row["SpotPrice"]),
            as_of=row["Timestamp"],
            source="local EC2" if self._cache is None else "EC2 spot price history",
            zone=row["AvailabilityZone"],
        )

    def _ask(self, instance_type: str) -> Price | None:
        """Ask the Price List API.

        Source: AWS Price List Query API reference, GetProducts; read 2026-09.
        """
        wanted = {
            "instanceType": instance_type,
            "regionCode": self._clients.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        with translate_errors(f"looking up the price of {instance_type} (pricing:GetProducts)"):
            answer = self._clients.read("pricing", PRICING_REGION).get_products(
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()
                ],
                MaxResults=10,
            )
        for product in answer["PriceList"]:
            usd = _hourly_usd(json.loads(product))
            if usd:
                return Price(
                    instance_type=instance_type,
                    region=self._clients.region,
                    market=Market.ON_DEMAND,
                    hourly_usd=usd,
                    as_of=self._clock.now(),
                    source="AWS Pricing API",
                )
        return None


def _hourly_usd(
    product: dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, str]]]]]]],
) -> Decimal:
    """Return the price of one product's on-demand term, 0 if it has none."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            return Decimal(dimension["pricePerUnit"].get("USD", "0"))
    return Decimal(0)
