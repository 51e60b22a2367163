"""Answers of AWS that are kept between commands."""

from datetime import datetime, timedelta
from typing import Protocol

FRESH = timedelta(days=1)


class Cache(Protocol):
    """Keeps answers between commands."""

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return the answer on a subject, and its date."""

    def put(self, subject: str, content: str, as_of: datetime) -> None: ...
