"""boto3 clients, made when first used and kept: each costs tens of milliseconds of reading descriptions."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.session import get_session

from dlcloud.cloud.faults import translate_errors

# Reads are repeated for throttling and dropped connections, with growing, jittered pauses.
_READ = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 8})
# A launch is tried once: botocore would answer "no capacity" (HTTP 500) with four more tries of one pool.
_LAUNCH = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1})
IMDS_TRIES = 3
ROLE_TRIES = 60
ROLE_PAUSE_S = 1.0


@dataclass(slots=True)
class Clients:
    """The clients of one region.

    Args:
        region: The AWS region.
        endpoint_url: Where the local EC2 answers; empty for AWS.
        on_instance: This runs on an instance and has its role, also at the local EC2; it is waited for.
        pause: Waits so many seconds.
    """

    region: str
    endpoint_url: str = ""
    on_instance: bool = False
    pause: Callable[[float], None] = time.sleep
    _session: Any = None
    _made: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def read(self, service: str, region: str = "") -> Any:  # noqa: ANN401  boto3 has no types
        """Return a client whose calls are safe to repeat."""
        return self._client(service, region or self.region, _READ, "read")

    def launch(self) -> Any:  # noqa: ANN401  boto3 has no types
        """Return the EC2 client whose calls are tried once."""
        return self._client("ec2", self.region, _LAUNCH, "launch")

    def identity(self) -> str:
        """Return a digest by which answers for one set of credentials, or one local EC2, are told apart."""
        with self._lock, translate_errors("finding credentials"):
            found = self._session_of(self.region).get_credentials()
            name = found.get_frozen_credentials().access_key if found else ""
        return hashlib.sha256(f"{name} {self.endpoint_url}".encode()).hexdigest()[:16]

    def in_region(self, region: str) -> "Clients":
        """Return the clients of another region, which share what is costly to load."""
        with self._lock, translate_errors(f"using AWS in {region}"):
            self._session_of(self.region)
            return replace(self, region=region, _made={})

    def _client(self, service: str, region: str, config: Config, kind: str) -> Any:  # noqa: ANN401
        with self._lock, translate_errors(f"using {service} in {region}"):
            key = (f"{service}/{region}", kind)
            if key not in self._made:
                self._made[key] = self._new(service, region, config)
            return self._made[key]

    def _new(self, service: str, region: str, config: Config) -> Any:  # noqa: ANN401
        return self._session_of(region).client(
            service, region_name=region, endpoint_url=self.endpoint_url or None, config=config
        )

    def _session_of(self, region: str) -> Any:  # noqa: ANN401
        if self._session is None and self.on_instance:
            self._session = self._with_role(region)
        elif self._session is None:
            self._session = boto3.Session(region_name=region, **self._local_credentials())
        return self._session

    def _with_role(self, region: str) -> Any:  # noqa: ANN401
        """Return a session once the instance has credentials: they come seconds after its profile."""
        core = get_session()
        core.set_config_variable("metadata_service_num_attempts", IMDS_TRIES)
        session = boto3.Session(region_name=region, botocore_session=core)
        for _ in range(ROLE_TRIES):
            if session.get_credentials() is not None:
                break
            self.pause(ROLE_PAUSE_S)
        return session

    def _local_credentials(self) -> dict[str, str]:
        """The local EC2 takes any credentials; the user's own must never be sent there."""
        if not self.endpoint_url:
            return {}
        return {"aws_access_key_id": "local", "aws_secret_access_key": "local"}  # pragma: allowlist secret
