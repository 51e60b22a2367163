"""Answers of the cloud that change rarely, and prices, with their dates."""

from contextlib import suppress
from dataclasses import asdict
from datetime import datetime

from dlcloud.model.errors import UnwritableError
from dlcloud.model.instance import Market, Price
from dlcloud.store.database import Database, read_row


class AnswerCache:
    """The table answers.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return the answer on a subject, and its date."""
        rows = self._database.read("SELECT content, as_of FROM answers WHERE subject = ?", subject)
        return (rows[0]["content"], datetime.fromisoformat(rows[0]["as_of"])) if rows else None

    def put(self, subject: str, content: str, as_of: datetime) -> None:
        """Store an answer in place of an older one."""
        row = {"subject": subject, "content": content, "as_of": as_of}
        with suppress(UnwritableError):  # it is asked for again the next time
            self._database.insert("answers", row, replace=True)


class PriceCache:
    """The table prices.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, instance_type: str, region: str, market: Market) -> Price | None:
        """Return the newest price."""
        statement = "SELECT * FROM prices WHERE instance_type = ? AND region = ? AND market = ?"
        rows = self._database.read(f"{statement} ORDER BY as_of DESC LIMIT 1", instance_type, region, market)
        return read_row(Price, rows[0]) if rows else None

    def put(self, price: Price) -> None:
        row = asdict(price)
        del row["zone"]  # only on-demand prices are cached, which are the same in every zone
        with suppress(UnwritableError):
            self._database.insert("prices", row, replace=True)
