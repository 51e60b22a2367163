"""Interruption notices and rebalance recommendations from the instance metadata service, version 2.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices" and "EC2 instance rebalance
recommendations": 404 while there is none; then JSON with `action` and `time`, or `noticeTime`.
"""

import http.client
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..limits import request

DEFAULT_ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
POLL_S = 2.0
"""Between two requests. Source: the same pages recommend 5 seconds at most."""

NOTICE_TIME = timedelta(minutes=2)
"""From a notice to the interruption. Source: "Spot Instance interruption notices"."""

_TOKEN_S = 300
_TIMEOUT_S = 2.0
_TOKEN = re.compile(r"[!-~]+")  # printable ASCII without spaces
_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_NOTICE = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotStatus:
    """The notices that the service shows at one time.

    Attributes:
        action: Of an interruption notice: terminate, stop or hibernate; None without a notice.
        at: When the instance is interrupted; now for hibernate, which has no delay.
        rebalance: When a rebalance recommendation was made; None without one.
        is_estimated: True if the notice has no readable time: `at` is `NOTICE_TIME` from now.
    """

    action: str | None = None
    at: datetime | None = None
    rebalance: datetime | None = None
    is_estimated: bool = False


class MetadataError(Exception):
    """The service does not answer, or not as documented; to be repeated.

    Attributes:
        partial: What was read nevertheless: a notice counts although the other path fails.
    """

    def __init__(self, message: str, partial: SpotStatus | None = None) -> None:
        super().__init__(message)
        self.partial = partial or SpotStatus()


@dataclass(slots=True)
class MetadataClient:
    """Sends requests to the metadata service at `http://HOST[:PORT]`."""

    endpoint: str = DEFAULT_ENDPOINT
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _token: str | None = field(default=None, init=False)
    _renew_at: float = field(default=0.0, init=False)

    def fetch(self) -> SpotStatus:
        """Return the present notices; each path is read whatever the other one answers.

        Raises:
            MetadataError: The service cannot be reached, failed, or answered something undocumented.
        """
        status, messages = SpotStatus(), []
        for read in (self._read_notice, self._read_rebalance):
            try:
                status = read(status)
            except MetadataError as error:
                messages.append(str(error))
        if messages:
            raise MetadataError("; ".join(dict.fromkeys(messages)), status)
        return status

    def _read_notice(self, status: SpotStatus) -> SpotStatus:
        document = self._fetch_document(_NOTICE)
        if document is None:
            return status
        if "action" not in document:
            raise MetadataError("the metadata service gave a notice without an action")
        action = str(document["action"])
        try:
            return replace(status, action=action, at=_parse_time(document["time"]))
        except (KeyError, TypeError, ValueError):
            if action == "hibernate":
                return replace(status, action=action, at=self.now())
            return replace(status, action=action, at=self.now() + NOTICE_TIME, is_estimated=True)

    def _read_rebalance(self, status: SpotStatus) -> SpotStatus:
        document = self._fetch_document(_REBALANCE)
        if document is None:
            return status
        try:
            return replace(status, rebalance=_parse_time(document["noticeTime"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the metadata service gave an unknown answer: {error!r}") from error

    def _fetch_document(self, path: str) -> dict[str, Any] | None:
        """Return a JSON document; None for 404."""
        status, text = self._get(path)
        if status == HTTPStatus.UNAUTHORIZED:
            # The token has expired, as after a stop and start: fetch one new token, then it is an error.
            self._token = None
            status, text = self._get(path)
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise MetadataError(f"the metadata service answered {status} for {path}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"the metadata service answered no JSON for {path}") from error
        if not isinstance(document, dict):
            raise MetadataError(f"the metadata service answered no JSON object for {path}")
        return document

    def _get(self, path: str) -> tuple[int, str]:
        if self._token is None or self.clock() >= self._renew_at:
            self._token = self._new_token()
        return self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        requested_at = self.clock()
        status, text = self._request(
            "PUT", _TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
        )
        if status != HTTPStatus.OK:
            raise MetadataError(f"the metadata service answered {status} for a token")
        # A header takes no other text; a proxy or a portal may answer with a page instead.
        token = text.strip()
        if not _TOKEN.fullmatch(token):
            raise MetadataError("the metadata service gave a token that is no printable word")
        self._renew_at = requested_at + 0.8 * _TOKEN_S
        return token

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        host = urlsplit(self.endpoint).netloc
        try:
            status, answer = request(
                host, method, path, headers=headers, limit_s=_TIMEOUT_S, most_bytes=1 << 16
            )
        except (OSError, http.client.HTTPException) as error:
            raise MetadataError(f"no metadata service at {self.endpoint}: {error}") from error
        return status, answer.decode("utf-8", "replace")


@dataclass(slots=True)
class NoticeTracker:
    """Finds the new notices in a sequence of statuses.

    Attributes:
        deadline: The earliest time of a notice: a later one does not move it, as some services let the time
            slide with each request.
    """

    deadline: datetime | None = field(default=None, init=False)
    _action: str | None = field(default=None, init=False)
    _rebalance: datetime | None = field(default=None, init=False)

    def note_interruption(self, status: SpotStatus) -> str | None:
        """Return a text for a new notice, or one whose time is earlier now; None for a repeated one."""
        # A notice is never withdrawn: it holds even if one status lacks it.
        if status.action is None or status.at is None:
            return None
        is_first = self.deadline is None
        is_earlier = self.deadline is None or status.at < self.deadline
        # A notice of hibernation has no time: its first appearance counts.
        if status.action == self._action and (not is_earlier or status.action == "hibernate"):
            return None
        self._action = status.action
        text = f"interruption notice: {status.action}"
        if not is_earlier:
            return text
        self.deadline = status.at
        if status.is_estimated:
            text += f", no readable time: {NOTICE_TIME.seconds // 60} minutes from its first appearance"
        return text if is_first else f"{text}, its time has moved"

    def note_rebalance(self, status: SpotStatus) -> str | None:
        """Return a text for a new recommendation."""
        if status.rebalance is None or status.rebalance == self._rebalance:
            return None
        self._rebalance = status.rebalance
        return "rebalance recommendation"


def _parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
