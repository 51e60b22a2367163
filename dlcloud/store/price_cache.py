"""Prices that were asked for once, with their dates and sources."""

from dataclasses import asdict
from datetime import datetime
from decimal import Decimal

from dlcloud.core.instance import Market, Price
from dlcloud.store.database import Database


class StoredPrices:
    """The table prices.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def cached_price(self, instance_type: str, region: str, market: Market) -> Price | None:
        """Return the newest price stored; None if there is none."""
        rows = self._database.read(
            "SELECT * FROM prices WHERE instance_type = ? AND region = ? AND market = ?"
            " ORDER BY as_of DESC LIMIT 1",
            instance_type,
            region,
            market,
        )
        if not rows:
            return None
        return Price(
            instance_type=instance_type,
            region=region,
            market=market,
            hourly_usd=Decimal(rows[0]["hourly_usd"]),
            as_of=datetime.fromisoformat(rows[0]["as_of"]),
            source=rows[0]["source"],
        )

    def cache_price(self, price: Price) -> None:
        """Store a price."""
        row = asdict(price)
        del row["zone"]  # only on-demand prices are kept, and they hold in every zone
        self._database.insert("prices", row, replace=True)
