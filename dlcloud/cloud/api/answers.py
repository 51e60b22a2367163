"""Answers of AWS that are kept between commands."""

import json
from datetime import datetime, timedelta
from typing import Any, Protocol

from dlcloud.cloud.api.clients import Clients
from dlcloud.model.clock import Clock

FRESH = timedelta(days=1)


class Cache(Protocol):
    """Keeps answers between commands."""

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return the answer on a subject, and its date."""

    def put(self, subject: str, content: str, as_of: datetime) -> None: ...


class KeptAnswers:
    """Answers on one account in one region, or on one local EC2.

    Args:
        clients: The region's clients.
        cache: Where they are kept; None keeps nothing.
        clock: Dates them.
    """

    def __init__(self, *, clients: Clients, cache: Cache | None, clock: Clock) -> None:
        self._clients = clients
        self._cache = cache
        self._clock = clock

    def get(self, subject: str, age: timedelta = FRESH) -> Any:  # noqa: ANN401  of the type that was put
        """Return the answer on a subject; None without one of at most that age."""
        answer = None if self._cache is None else self._cache.get(self._name(subject))
        if answer is None or self._clock.now() - answer[1] > age:
            return None
        return json.loads(answer[0])

    def put(self, subject: str, content: object) -> None:
        """Keep an answer, which JSON can hold, in place of an older one."""
        if self._cache is not None:
            self._cache.put(self._name(subject), json.dumps(content), self._clock.now())

    def _name(self, subject: str) -> str:
        """Return a name that no other account, region or local EC2 shares."""
        return f"{self._clients.identity()} {self._clients.region} {subject}"
