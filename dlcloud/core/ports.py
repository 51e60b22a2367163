"""The protocols that flows are typed by; each is implemented once, below them, and once in the tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dlcloud.core.instance import Image, Instance, InstanceType, Market, Price


class Clock(Protocol):
    """Time, injected so that tests do not wait."""

    def now(self) -> datetime:
        """Return the time of day, aware, UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the credentials belong to."""

    account: str
    arn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One RunInstances call. `zone` empty: EC2 chooses."""

    instance_type: str
    zone: str
    market: Market
    min_count: int
    max_count: int
    image: Image
    disk_gib: int
    security_group_id: str
    user_data: str
    client_token: str
    tags: Mapping[str, str]


class Cloud(Protocol):
    """EC2, as far as dlcloud uses it. Every method is safe to call from several threads.

    Every method may raise CredentialsError, ThrottledError, or CloudError for a refusal of another kind.
    """

    region: str

    def identity(self) -> Identity:
        """Return who is calling."""

    def caller_cidr(self) -> str:
        """Return the caller's own address as EC2 sees it, as a /32 (or /128) network."""

    def hardware(self, instance_type: str) -> InstanceType | None:
        """Return what is known of a type without asking EC2; None for an unknown one."""

    def offered_zones(self, instance_types: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of the region that offer each type, sorted; a type not offered is absent."""

    def resolve_image(self, image: str, *, gpu: bool) -> Image:
        """Find the image a recipe names: `ami-…`, an SSM parameter's path, or `auto`."""

    def prices(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        """Return the prices that are known; spot prices are the lowest over the zones."""

    def instances(self, cluster_id: str = "") -> list[Instance]:
        """Return the instances that carry the cluster's tag (any managed one without `cluster_id`)."""

    def create_security_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Return the id of the cluster's security group in the default VPC, made if it is missing."""

    def allow_ssh(self, security_group_id: str, cidr: str) -> None:
        """Let one network reach port 22; no error if it already may."""

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Launch between `min_count` and `max_count` instances.

        Raises:
            CapacityError: The pool has too few.
            QuotaError: The account may not have so many.
        """

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances; no error for one that is gone."""

    def delete_security_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's security groups; returns those that instances still use."""
