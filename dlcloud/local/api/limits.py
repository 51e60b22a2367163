"""The limits of EC2's requests: how many ids, instances and pools one may name."""

from collections.abc import Mapping
from types import MappingProxyType

from dlcloud.local.api.call import Call, Refusal

_MOST_IDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "CreateTags": ("ResourceId.", 1000),
        "DeleteTags": ("ResourceId.", 1000),
        "DeleteFleets": ("FleetId.", 25),
        "DescribeInstances": ("InstanceId.", 1000),
        "DescribeInstanceStatus": ("InstanceId.", 100),
        "TerminateInstances": ("InstanceId.", 1000),
    }
)
"""The most ids by action, and the begin of their parameters. Source: EC2 API reference, of each action."""

_LAUNCHED_AT_ONCE = 1000
"""Source: EC2 developer guide, "Request throttling": RunInstances has a bucket of 1,000 resource tokens."""

_MOST_CAPACITY, _MOST_POOLS = 10_000, 300
"""Source: EC2 user guide, "Quotas for EC2 Fleet and Spot Fleet": target capacity, and pools, of a fleet."""

_POOL = ".InstanceType"


def limit_refusal(call: Call) -> Refusal | None:
    """Return the error of a request that names more than one may."""
    if call.service != "ec2":
        return None
    if call.action == "RunInstances":
        return _too_many_instances(call)
    if call.action == "CreateFleet":
        return _too_large_fleet(call)
    prefix, most = _MOST_IDS.get(call.action, ("", 0))
    count = sum(name.startswith(prefix) for name, _ in call.parameters) if prefix else 0
    if count <= most:
        return None
    message = f"{count} exceeds the maximum number of IDs that can be specified ({most})."
    return Refusal(code="InvalidRequest", message=message)


def _too_many_instances(call: Call) -> Refusal | None:
    if _number(call.parameter("MaxCount")) <= _LAUNCHED_AT_ONCE:
        return None
    message = "Request limit exceeded: it exceeds the resource throttling limit of ec2:RunInstances."
    return Refusal(code="RequestLimitExceeded", message=message, status=503)


def _too_large_fleet(call: Call) -> Refusal | None:
    capacity = _number(call.parameter("TargetCapacitySpecification.TotalTargetCapacity"))
    pools = sum(name.endswith(_POOL) for name, _ in call.parameters)
    if capacity <= _MOST_CAPACITY and pools <= _MOST_POOLS:
        return None
    message = f"A fleet has at most {_MOST_CAPACITY} instances, of {_MOST_POOLS} pools."
    return Refusal(code="InvalidParameterValue", message=message)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
