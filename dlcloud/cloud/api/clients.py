"""boto3 clients, created when first used and kept: one costs tens of milliseconds to create."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from getpass import getpass
from threading import Lock
from typing import Any

import boto3
import botocore.session
import botocore.utils
from botocore.config import Config
from botocore.session import get_session

from dlcloud.cloud.api.aws_session import open_session
from dlcloud.cloud.api.denial_decoder import decode_denials
from dlcloud.cloud.api.faults import LATE_PAUSES_S, NOT_VISIBLE, retry_codes, translate_errors
from dlcloud.cloud.api.partitions import check_region
from dlcloud.cloud.api.service_loader import use_service_loader
from dlcloud.model.login import Login

# Repeated for throttling and dropped connections, with growing, jittered pauses.
_RETRIED = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 8})
# For launches: botocore would answer "no capacity" (HTTP 500) with four more tries of one pool.
_TRIED_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1})
IMDS_TRIES = 3
ROLE_TRIES = 60
ROLE_PAUSE_S = 1.0


def parse_timestamp(value: object) -> datetime:
    """Return the time of an answer; EC2's, of which a thousand instances have thousands, in 1/50 of the time.

    Raises:
        ValueError: It is in none of botocore's forms.
    """
    if isinstance(value, str) and value.endswith("Z"):
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value)
    parsed: datetime = botocore.utils.parse_timestamp(value)
    return parsed


@dataclass(slots=True)
class Clients:
    """The clients of one region.

    Args:
        region: The AWS region.
        endpoint_url: URL of the local EC2; empty for AWS.
        on_instance: This process runs on an instance and uses its role, which may come some seconds later.
        pause: Waits so many seconds.
        ask: Asks the user for the MFA code of a profile.
        on_call: Called with True before each call, with False after it; from any thread.
        login: The AWS profile and the role to use; what the environment says without one.
    """

    region: str
    endpoint_url: str = ""
    access_key: tuple[str, str] = ("local", "local")
    on_instance: bool = False
    pause: Callable[[float], None] = time.sleep
    ask: Callable[[str], str] = getpass
    login: Login = field(default_factory=Login)
    on_call: Callable[[bool], None] = lambda _: None
    _session: Any = None
    _clients: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Refuse a region that does not exist, before its address is looked up.

        Raises:
            RecipeError: There is none of that name.
        """
        check_region(self.region)

    def get(self, service: str, region: str = "") -> Any:  # noqa: ANN401  boto3 has no types
        """Return a client that repeats failed calls: for calls that are safe to repeat."""
        return self._client(service, region or self.region, _RETRIED, "retried")

    def get_without_retries(self) -> Any:  # noqa: ANN401  boto3 has no types
        """Return the EC2 client whose calls are tried once: for launches."""
        return self._client("ec2", self.region, _TRIED_ONCE, "tried once")

    def call_until_visible(self, method: str, **arguments: object) -> Any:  # noqa: ANN401  boto3 has no types
        """Call EC2 on what was created a moment ago; repeat it for 30 s while EC2 does not know it yet."""
        call = getattr(self.get("ec2"), method)
        return retry_codes(call, arguments, NOT_VISIBLE, pauses_s=LATE_PAUSES_S, pause=self.pause)

    def pages(self, service: str, method: str, key: str, **arguments: object) -> list[Any]:
        """Return the items under `key` of every page that a method answers."""
        pages = self.get(service).get_paginator(method).paginate(**arguments)
        return [item for page in pages for item in page[key]]

    def identity(self) -> str:
        """Return a digest that distinguishes accounts, and local EC2s; a new login does not change it."""
        with self._lock, translate_errors("finding credentials"):
            name = _account_name(self._session_of(self.region))
        return hashlib.sha256(f"{name} {self.endpoint_url}".encode()).hexdigest()[:16]

    def credentials(self) -> Any:  # noqa: ANN401  boto3 has no types
        """Return the credentials of now, for what botocore does not sign itself."""
        with self._lock, translate_errors("finding credentials"):
            return self._session_of(self.region).get_credentials().get_frozen_credentials()

    def in_region(self, region: str) -> "Clients":
        """Return the clients of another region, which share the session: it is costly to load."""
        with self._lock, translate_errors(f"using AWS in {region}"):
            self._session_of(self.region)
            return replace(self, region=region, _clients={})

    def _client(self, service: str, region: str, config: Config, kind: str) -> Any:  # noqa: ANN401
        with self._lock, translate_errors(f"using {service} in {region}"):
            key = (f"{service}/{region}", kind)
            if key not in self._clients:
                client = self._session_of(region).client(
                    service, region_name=region, endpoint_url=self.endpoint_url or None, config=config
                )
                events = client.meta.events
                events.register("before-call", lambda **_: self.on_call(True))
                events.register("after-call", lambda **_: self.on_call(False))
                events.register("after-call-error", lambda **_: self.on_call(False))
                events.register("after-call", lambda parsed, **_: decode_denials(self, parsed))
                self._clients[key] = client
            return self._clients[key]

    def _session_of(self, region: str) -> Any:  # noqa: ANN401
        if self._session is None:
            self._session = self._open_session(region)
            use_service_loader(self._session)
            parsers = self._session._session.get_component("response_parser_factory")  # noqa: SLF001  as below
            parsers.set_parser_defaults(timestamp_parser=parse_timestamp)
        return self._session

    def _open_session(self, region: str) -> Any:  # noqa: ANN401
        if self.on_instance:
            return self._with_role(region)
        if self.endpoint_url:
            # The user's own credentials must never be used there.
            key_id, secret = self.access_key
            return boto3.Session(region_name=region, aws_access_key_id=key_id, aws_secret_access_key=secret)
        return open_session(self.login, region, self.ask)

    def _with_role(self, region: str) -> Any:  # noqa: ANN401
        """Return a session; wait until the instance has credentials, some seconds after its profile."""
        core = get_session()
        core.set_config_variable("metadata_service_num_attempts", IMDS_TRIES)
        session = boto3.Session(region_name=region, botocore_session=core)
        for _ in range(ROLE_TRIES):
            if session.get_credentials() is not None:
                break
            self.pause(ROLE_PAUSE_S)
        return session


def _account_name(session: Any) -> str:  # noqa: ANN401  boto3 has no types
    """Return what stands for the account of a session: its id, else its profile, else its access key.

    Only keys without a token stay the same; the others change with each login.
    """
    credentials = session.get_credentials()
    if credentials is None:
        return ""
    frozen = credentials.get_frozen_credentials()
    if account := getattr(frozen, "account_id", None):
        return str(account)
    core = session._session  # noqa: SLF001  boto3 shows no settings of a profile
    profile = core.get_config_variable("profile")
    if frozen.token and profile:
        return json.dumps([profile, core.get_scoped_config()], sort_keys=True, default=str)
    return str(frozen.access_key)
