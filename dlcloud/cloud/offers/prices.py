"""Prices of instances: those of AWS, cached with their date, else those of the bundled table."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.api.partitions import service_region
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price

FRESH = timedelta(days=1)
MANY = 20
"""Types for which one question about all is quicker than one about each."""
PRICING_REGION = "us-east-1"  # Source: AWS Price List API, endpoints: us-east-1, eu-central-1, ap-south-1
PRICING_ENDPOINT = "api.pricing"

log = logging.getLogger(__name__)


class KeptPrices(Protocol):
    """Remembers on-demand prices between commands."""

    def get(self, instance_type: str, region: str, market: Market) -> Price | None:
        """Return the newest price stored; None if there is none."""

    def put(self, price: Price) -> None: ...


class Prices:
    """Prices of one region.

    Args:
        clients: The region's clients.
        catalog: The bundled table.
        cache: Keeps AWS's answers; None on the local EC2, where only the table is used.
        clock: Dates answers.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, cache: KeptPrices | None, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._cache = cache
        self._clock = clock

    def find(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        """Return the known prices of types, spot prices by zone; on-demand ones are always among them."""
        on_demand = self.on_demand(instance_types)
        return on_demand + (self.spot(instance_types) if Market.SPOT in markets else [])

    def on_demand(self, instance_types: Sequence[str]) -> list[Price]:
        """Return the known on-demand prices: cached for a day, else AWS's, else of the bundled table."""
        if self._cache is not None:
            missing = [name for name in instance_types if self._cached(name) is None]
            try:
                self._fetch(missing)
            except CloudError as error:
                log.warning("no answer from the Pricing API, using older prices: %s", error.message)
        prices = (self._newest(name) for name in instance_types)
        return [price for price in prices if price is not None]

    def _newest(self, instance_type: str) -> Price | None:
        region = self._clients.region
        cached = self._cache and self._cache.get(instance_type, region, Market.ON_DEMAND)
        price = cached or self._catalog.on_demand_price(instance_type, region)
        if price is None and self._cache is None:  # as the local EC2 quotes it
            price = self._catalog.on_demand_price(instance_type, DEFAULT_REGION)
            return price and replace(price, region=region, source=f"bundled table, of {DEFAULT_REGION}")
        return price

    def _cached(self, instance_type: str) -> Price | None:
        """Return an on-demand price of the last day."""
        cached = self._cache and self._cache.get(instance_type, self._clients.region, Market.ON_DEMAND)
        return cached if cached and self._clock.now() - cached.as_of < FRESH else None

    def spot_history(self, instance_types: Sequence[str], since: datetime) -> list[Price]:
        """Return every spot price of types in each zone since a time, with the one that was valid then.

        Source: EC2 API reference, DescribeSpotPriceHistory: up to 90 days, with the price valid at StartTime.
        """
        with translate_errors("looking up spot prices (ec2:DescribeSpotPriceHistory)"):
            rows = self._clients.pages(
                "ec2",
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=list(instance_types),
                ProductDescriptions=["Linux/UNIX"],
                StartTime=since,
            )
        return [self._spot_price(row) for row in sorted(rows, key=lambda row: row["Timestamp"])]

    def spot(self, instance_types: Sequence[str]) -> list[Price]:
        """Return the spot price of each type in each zone now; many types are picked out of all."""
        names = {} if len(instance_types) >= MANY else {"InstanceTypes": list(instance_types)}
        with translate_errors("looking up spot prices (ec2:DescribeSpotPriceHistory)"):
            rows = self._clients.pages(
                "ec2",
                "describe_spot_price_history",
                "SpotPriceHistory",
                **names,
                ProductDescriptions=["Linux/UNIX"],
                StartTime=self._clock.now(),
            )
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["Timestamp"]):
            if row["InstanceType"] not in instance_types:
                continue
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

    def _fetch(self, instance_types: Sequence[str]) -> None:
        """Put AWS's prices into the cache; many types are picked out of the whole region's pages."""
        questions = [{"instanceType": name} for name in instance_types]
        for fields in questions if len(questions) < MANY else [{}]:
            for product in self.products(fields):
                name = fields.get("instanceType") or product["product"]["attributes"].get("instanceType", "")
                usd = hourly_usd(product)
                if self._cache is not None and usd and name in instance_types and not self._cached(name):
                    self._cache.put(self._on_demand_price(name, usd))

    def products(self, fields: Mapping[str, str]) -> list[Any]:
        """Look up products of the region in the Price List API.

        Source: AWS Price List Query API reference, GetProducts; read 2026-09.
        """
        terms = {
            **fields,
            "regionCode": self._clients.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        subject = fields.get("instanceType", "every instance type")
        region = service_region(PRICING_ENDPOINT, self._clients.region, PRICING_REGION)
        if not region:
            raise CloudError(f"no price list answers in the partition of {self._clients.region}")
        with translate_errors(f"looking up the price of {subject} (pricing:GetProducts)"):
            pages = self._clients.get("pricing", region).get_paginator("get_products")
            answers = pages.paginate(
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in terms.items()
                ],
            )
            return [json.loads(product) for answer in answers for product in answer["PriceList"]]

    def _on_demand_price(self, instance_type: str, usd: Decimal) -> Price:
        return Price(
            instance_type=instance_type,
            region=self._clients.region,
            market=Market.ON_DEMAND,
            hourly_usd=usd,
            as_of=self._clock.now(),
            source="AWS Pricing API",
        )


def hourly_usd(product: Mapping[str, Any]) -> Decimal:
    """Return the price of one product's on-demand term, 0 if it has none."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            return Decimal(dimension["pricePerUnit"].get("USD", "0"))
    return Decimal(0)
