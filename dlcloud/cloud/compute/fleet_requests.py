"""Convert between fleets of `planning` and the arguments and answers of CreateFleet."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.faults import refusal
from dlcloud.cloud.compute.requests import tag_specification
from dlcloud.model.instance import Instance, InstanceState, Market
from dlcloud.planning.launch_request import FleetRequest, LaunchResult, PoolRefusal

FLEET_TAG = "aws:ec2:fleet-id"
"""Set by EC2 on the instances of a fleet."""


def fleet_arguments(request: FleetRequest) -> dict[str, Any]:
    """Return the arguments of CreateFleet.

    Source: EC2 API reference, CreateFleet, and EC2 user guide, "Allocation strategies", which advises
    price-capacity-optimized for spot; for on-demand, prioritized keeps the order of the recipe.
    """
    order = {name: index for index, name in enumerate(dict.fromkeys(name for name, _ in request.pools))}
    overrides = [
        {
            "InstanceType": name,
            "Priority": float(order[name]),
            **_place(zone, request),
            **({"MaxPrice": f"{request.max_usd[name]:f}"} if name in request.max_usd else {}),
        }
        for name, zone in request.pools
    ]
    template = {"LaunchTemplateName": request.template, "Version": "$Latest"}
    single = {"SingleAvailabilityZone": True} if request.single_zone else {}
    return {
        "Type": "instant",
        "ClientToken": request.client_token,
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": template, "Overrides": overrides}],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.spot_count + request.on_demand_count,
            "OnDemandTargetCapacity": request.on_demand_count,
            "SpotTargetCapacity": request.spot_count,
            "DefaultTargetCapacityType": "spot" if request.spot_count else "on-demand",
        },
        "SpotOptions": {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
            **single,
        },
        "OnDemandOptions": {"AllocationStrategy": "prioritized", **single},
        "TagSpecifications": [
            tag_specification(resource, request.tags) for resource in ("fleet", "instance")
        ],
    }


def read_fleet(answer: Mapping[str, Any], request: FleetRequest) -> LaunchResult:
    """Read the answer of CreateFleet."""
    instances = [
        _fleet_instance(instance_id, group, answer["FleetId"], request)
        for group in answer.get("Instances") or ()
        for instance_id in group["InstanceIds"]
    ]
    return LaunchResult(
        instances=tuple(instances),
        refusals=tuple(_pool_refusal(error, request) for error in answer.get("Errors") or ()),
        fleet_id=answer["FleetId"],
    )


def _fleet_instance(
    instance_id: str, group: Mapping[str, Any], fleet_id: str, request: FleetRequest
) -> Instance:
    pool = group.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    requested_at: datetime = request.requested_at
    return Instance(
        instance_id=instance_id,
        instance_type=group.get("InstanceType") or pool.get("InstanceType", ""),
        market=Market.SPOT if group.get("Lifecycle") == "spot" else Market.ON_DEMAND,
        zone=_zone_of(pool, request),
        state=InstanceState.PENDING,
        state_reason="",
        launched_at=requested_at,
        tags={**request.tags, FLEET_TAG: fleet_id},
    )


def _place(zone: str, request: FleetRequest) -> dict[str, str]:
    if zone in request.subnets:
        return {"SubnetId": request.subnets[zone]}
    return {"AvailabilityZone": zone} if zone else {}


def _zone_of(pool: Mapping[str, Any], request: FleetRequest) -> str:
    """Return the zone of a pool of an answer, which names it or its subnet."""
    zones = {subnet: zone for zone, subnet in request.subnets.items()}
    return str(pool.get("AvailabilityZone") or zones.get(pool.get("SubnetId", ""), ""))


def _pool_refusal(error: Mapping[str, Any], request: FleetRequest) -> PoolRefusal:
    pool = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    zone = _zone_of(pool, request) or pool.get("SubnetId") or "any zone"
    name = f"{pool.get('InstanceType', '')} {error.get('Lifecycle', '')}"
    code = error.get("ErrorCode", "")
    foreign = ClientError({"Error": {"Code": code, "Message": error.get("ErrorMessage", "")}}, "CreateFleet")
    return PoolRefusal(pool=name, zone=zone, error=refusal(f"{name} in {zone}", foreign), code=code)
