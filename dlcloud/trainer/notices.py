"""Interruption notices and rebalance recommendations from the instance metadata service, version 2.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices" and "EC2 instance rebalance
recommendations": 404 while there is none; then JSON with `action` and `time`, or `noticeTime`.
"""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
POLL_S = 2.0
"""Between two looks. Source: the same pages recommend every 5 seconds."""

_TOKEN_S = 300
_TIMEOUT_S = 2.0
_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_NOTICE = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class MetadataError(Exception):
    """The service did not answer as it should; to be asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What the service says at one time.

    Attributes:
        action: What happens to the instance: terminate, stop or hibernate; None without a notice.
        at: When; at once for hibernate, which comes without delay.
        rebalance: When a raised risk was recommended to be acted on; None without a recommendation.
    """

    action: str | None = None
    at: datetime | None = None
    rebalance: datetime | None = None


@dataclass(slots=True)
class Metadata:
    """Asks the metadata service.

    Args:
        endpoint: `http://HOST[:PORT]`.
        clock: Seconds from any start, never backwards.
        now: Tells the time, aware and in UTC.
    """

    endpoint: str = DEFAULT_ENDPOINT
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _token: str | None = field(default=None, init=False)
    _renew_at: float = field(default=0.0, init=False)

    def look(self) -> Sighting:
        """Return what the service says now.

        Raises:
            MetadataError: It cannot be reached, failed, or said what is not understood.
        """
        notice, rebalance = self._document(_NOTICE), self._document(_REBALANCE)
        try:
            action = None if notice is None else str(notice["action"])
            at = None if notice is None else _moment(notice, "time", self.now(), action == "hibernate")
            recommended = None if rebalance is None else _time(rebalance["noticeTime"])
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the metadata service says what is not understood: {error!r}") from error
        return Sighting(action=action, at=at, rebalance=recommended)

    def _document(self, path: str) -> dict[str, Any] | None:
        """Return a JSON document, or None where there is none."""
        status, text = self._get(path)
        if status == HTTPStatus.UNAUTHORIZED:
            # The token is no longer known, as after a stop and start: one new one, then it is a fault.
            self._token = None
            status, text = self._get(path)
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise MetadataError(f"the metadata service answered {status} for {path}")
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise MetadataError(f"the metadata service answered no JSON for {path}") from error
        if not isinstance(document, dict):
            raise MetadataError(f"the metadata service answered no JSON object for {path}")
        return document

    def _get(self, path: str) -> tuple[int, str]:
        if self._token is None or self.clock() >= self._renew_at:
            self._token = self._new_token()
        return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        asked_at = self.clock()
        status, text = self._ask("PUT", _TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
        if status != HTTPStatus.OK:
            raise MetadataError(f"the metadata service answered {status} for a token")
        self._renew_at = asked_at + 0.8 * _TOKEN_S
        return text

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(1 << 16).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise MetadataError(f"no metadata service at {self.endpoint}: {error}") from error
        finally:
            connection.close()


@dataclass(slots=True)
class Watch:
    """Tells what is new in a sequence of sightings."""

    deadline: datetime | None = field(default=None, init=False)
    _action: str | None = field(default=None, init=False)
    _rebalance: datetime | None = field(default=None, init=False)

    def interruption(self, seen: Sighting) -> str | None:
        """Return what to say of a notice that is new, or whose time has moved; a repeated one is no news."""
        # A notice is never withdrawn: one that is not seen for once still holds.
        if seen.action is None or seen.at is None or (seen.action, seen.at) == (self._action, self.deadline):
            return None
        moved = self.deadline is not None
        # Hibernation carries no time of its own: the first sight of it counts.
        if seen.action == self._action == "hibernate":
            return None
        self._action, self.deadline = seen.action, seen.at
        return f"interruption notice: {seen.action}" + (", its time has moved" if moved else "")

    def rebalance(self, seen: Sighting) -> str | None:
        """Return what to say of a recommendation that is new."""
        if seen.rebalance is None or seen.rebalance == self._rebalance:
            return None
        self._rebalance = seen.rebalance
        return "rebalance recommendation"


def _moment(document: dict[str, Any], name: str, now: datetime, at_once: bool) -> datetime:  # noqa: FBT001
    return now if at_once and name not in document else _time(document[name])


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
