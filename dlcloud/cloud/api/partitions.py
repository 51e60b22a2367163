"""AWS's partitions, by region: commercial, China, GovCloud, as botocore's endpoint data describe them."""

import functools
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import botocore.loaders
from botocore.exceptions import BotoCoreError
from botocore.regions import EndpointResolver

from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError

COMMERCIAL = "aws"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition: its name in ARNs, and the end of its host names and of some service principals."""

    name: str
    dns_suffix: str

    @property
    def ec2_principal(self) -> str:
        """The principal of EC2 in trust policies.

        Source: aws-cdk, region-info, default principals: EC2's has the suffix of its partition.
        """
        return f"ec2.{self.dns_suffix}"


@functools.cache
def partition_of(region: str) -> Partition:
    """Return the partition of a region."""
    resolver = _resolver()
    try:
        name = str(resolver.get_partition_for_region(region))
    except BotoCoreError:  # a region that is newer than botocore
        name = COMMERCIAL
    return Partition(name=name, dns_suffix=str(resolver.get_partition_dns_suffix(name)))


@functools.cache
def check_region(region: str) -> None:
    """Refuse a region that botocore does not know: most are misspelt.

    Raises:
        RecipeError: There is none of that name; the hint has the nearest.
    """
    if region == DEFAULT_REGION:
        return
    resolver = _resolver()
    names = [
        name
        for partition in resolver.get_available_partitions()
        for name in resolver.get_available_endpoints("ec2", partition)
    ]
    if region not in names:
        near = get_close_matches(region, names, n=3, cutoff=0.8)
        near.sort(key=lambda name: sorted(name) != sorted(region))  # letters in another order first
        hint = f"did you mean {' or '.join(near)}?" if near else "name one such as us-east-1"
        raise RecipeError(f"there is no region {region}", f"{hint} (a new one: pip install -U boto3)")


@functools.cache
def service_region(service: str, region: str, preferred: str) -> str:
    """Return a region of the same partition where a service answers, of those that few regions have.

    Args:
        service: The prefix of its endpoints, as `api.pricing`.
        region: Any region of the partition.
        preferred: The region to take where it is one of them.

    Returns:
        The region; empty if the partition has none.
    """
    resolver, partition = _resolver(), partition_of(region).name
    names = set(resolver.get_available_endpoints(service, partition))
    names |= {
        _signing_region(resolver, service, partition, name)
        for name in resolver.get_available_endpoints(service, partition, allow_non_regional=True)
    }
    regions = sorted(name for name in names if name and "global" not in name)
    return preferred if preferred in regions else next(iter(regions), "")


def _signing_region(resolver: Any, service: str, partition: str, endpoint: str) -> str:  # noqa: ANN401
    """Return the region that signs for an endpoint of a whole partition."""
    described = resolver.construct_endpoint(service, endpoint, partition_name=partition) or {}
    return str(described.get("credentialScope", {}).get("region", ""))


@functools.cache
def _resolver() -> Any:  # noqa: ANN401  botocore has no types
    # Not a session's loader: a session reads ~/.aws/config, which a rehearsal needs no sound one of.
    return EndpointResolver(botocore.loaders.create_loader().load_data("endpoints"))
