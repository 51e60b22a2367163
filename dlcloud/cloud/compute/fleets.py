"""Fleets: one CreateFleet call for instances from several pools, and the launch templates that they need.

`launch.provision` makes a template of its first request and launches each round from it. A fleet answers with
instances and with the refusals of pools, both at the same time; its answer is final under its token. `down`
finds fleets and templates by their tags.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import refusal, retry_launch, translate_errors
from dlcloud.cloud.compute.requests import cluster_filter, tag_specification, template_data, template_name
from dlcloud.model.cluster import CLUSTER_TAG
from dlcloud.model.instance import Instance, InstanceState, Market, is_burstable
from dlcloud.planning.launch_request import FleetRequest, LaunchRequest, LaunchResult, PoolRefusal

NO_TEMPLATE = {
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFoundException",
}
FLEETS_A_CALL = 25  # Source: EC2 API reference, DeleteFleets: instant fleets a request
FLEET_TAG = "aws:ec2:fleet-id"
"""Set by EC2 on the instances of a fleet."""


class Ec2Fleets:
    """Fleets of one region.

    Args:
        clients: The region's clients.
        pause: Waits some seconds before a refused call is repeated.
    """

    def __init__(self, *, clients: Clients, pause: Callable[[float], None]) -> None:
        self._clients = clients
        self._pause = pause

    def create_template(self, request: LaunchRequest) -> str:
        """Return the name of a launch template that says what `request` does; made if it is missing."""
        data = template_data(request, b64encode(request.user_data.encode()).decode())
        name = template_name(request.tags[CLUSTER_TAG], data)
        with translate_errors(
            "creating the launch template (ec2:CreateLaunchTemplate)",
            ignore={"InvalidLaunchTemplateName.AlreadyExistsException"},
        ):
            self._clients.get("ec2").create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=[tag_specification("launch-template", request.tags)],
            )
            # What a list shows cannot be overlooked when the cluster goes down.
            self._clients.call_until_visible("describe_launch_templates", LaunchTemplateNames=[name])
        return name

    def launch(self, request: FleetRequest) -> LaunchResult:
        """Make one CreateFleet call; its token makes a repeated one harmless."""
        action = f"launching {request.spot_count} spot and {request.on_demand_count} on-demand instances"
        with translate_errors(f"{action} from {len(request.pools)} pools (ec2:CreateFleet)"):
            answer = retry_launch(
                self._clients.get_without_retries().create_fleet, fleet_arguments(request), pause=self._pause
            )
        return read_fleet(answer, request)

    def find(self, cluster_id: str) -> list[str]:
        """Return the cluster's fleets by their tags: EC2 lists an instant fleet only by its id."""
        filters = {"key": [CLUSTER_TAG], "value": [cluster_id], "resource-type": ["fleet"]}
        with translate_errors("listing fleets (ec2:DescribeTags)"):
            tags = self._clients.pages(
                "ec2",
                "describe_tags",
                "Tags",
                Filters=[{"Name": name, "Values": values} for name, values in filters.items()],
            )
        return sorted(tag["ResourceId"] for tag in tags)

    def delete(self, fleet_ids: Sequence[str]) -> None:
        """Delete fleets with their instances; no error for one that is gone."""
        for start in range(0, len(fleet_ids), FLEETS_A_CALL):
            batch = list(fleet_ids[start : start + FLEETS_A_CALL])
            with translate_errors(f"deleting {', '.join(batch)} (ec2:DeleteFleets)"):
                self._clients.get("ec2").delete_fleets(FleetIds=batch, TerminateInstances=True)

    def delete_templates(self, cluster_id: str) -> None:
        """Delete the launch templates of a cluster."""
        with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
            templates = self._clients.pages(
                "ec2", "describe_launch_templates", "LaunchTemplates", Filters=cluster_filter(cluster_id)
            )
        for template in templates:
            name = template["LaunchTemplateName"]
            with translate_errors(
                f"deleting launch template {name} (ec2:DeleteLaunchTemplate)", ignore=NO_TEMPLATE
            ):
                self._clients.get("ec2").delete_launch_template(LaunchTemplateName=name)


def fleet_arguments(request: FleetRequest) -> dict[str, Any]:
    """Return the arguments of CreateFleet.

    Source: EC2 API reference, CreateFleet, and EC2 user guide, "Allocation strategies", which advises
    price-capacity-optimized for spot; for on-demand, prioritized keeps the order of the recipe.
    """
    order = {name: index for index, name in enumerate(dict.fromkeys(name for name, _ in request.pools))}
    overrides: dict[str, list[dict[str, Any]]] = {}
    for name, zone in request.pools:
        template = (is_burstable(name) and request.burstable_template) or request.template
        overrides.setdefault(template, []).append(
            {
                "InstanceType": name,
                "Priority": float(order[name]),
                **_place(zone, request),
                **(
                    {"MaxPrice": f"{request.max_hourly_usd[name]:f}"}
                    if name in request.max_hourly_usd
                    else {}
                ),
            }
        )
    single = {"SingleAvailabilityZone": True} if request.single_zone else {}
    return {
        "Type": "instant",
        "ClientToken": request.client_token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                "Overrides": of_template,
            }
            for template, of_template in overrides.items()
        ],
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
            # A policy may ask for the tags of volumes in the request itself, not only in its template.
            tag_specification(resource, request.tags)
            for resource in ("fleet", "instance", "volume")
        ],
    }


def _place(zone: str, request: FleetRequest) -> dict[str, str]:
    if zone in request.subnets:
        return {"SubnetId": request.subnets[zone]}
    return {"AvailabilityZone": zone} if zone else {}


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


def _pool_refusal(error: Mapping[str, Any], request: FleetRequest) -> PoolRefusal:
    pool = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    zone = _zone_of(pool, request) or pool.get("SubnetId") or "any zone"
    name = f"{pool.get('InstanceType', '')} {error.get('Lifecycle', '')}"
    code = error.get("ErrorCode", "")
    foreign = ClientError({"Error": {"Code": code, "Message": error.get("ErrorMessage", "")}}, "CreateFleet")
    return PoolRefusal(pool=name, zone=zone, error=refusal(f"{name} in {zone}", foreign), code=code)


def _zone_of(pool: Mapping[str, Any], request: FleetRequest) -> str:
    """Return the zone of a pool of an answer, which names it or its subnet."""
    zones = {subnet: zone for zone, subnet in request.subnets.items()}
    return str(pool.get("AvailabilityZone") or zones.get(pool.get("SubnetId", ""), ""))
