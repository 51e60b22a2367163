"""Ask EC2 whether it would carry out a change, by `DryRun`: its parameters and the caller's permissions.

EC2 checks neither capacity nor quotas, and costs nothing. Source: EC2 API reference, RunInstances: DryRun;
karpenter-provider-aws, issues 7834 and 7928, for the parameters.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import NOT_VISIBLE, translate_errors
from dlcloud.cloud.compute.fleets import fleet_arguments
from dlcloud.cloud.compute.requests import (
    run_instances_arguments,
    tag_specification,
    template_data,
)
from dlcloud.model.cluster import NEW_GROUP
from dlcloud.model.errors import CredentialsError
from dlcloud.model.instance import Market
from dlcloud.planning.launch_request import FleetRequest, LaunchRequest

WOULD_SUCCEED = {"DryRunOperation"}
NAME = "dlcloud-dry-run"


def dry_run(clients: Clients, action: str, request: LaunchRequest) -> None:
    """Ask for one of the changes that a launch makes.

    Args:
        clients: The region's.
        action: CreateSecurityGroup, RunInstances, CreateLaunchTemplate or CreateFleet.
        request: The launch; without a security group, EC2 takes the VPC's default one.

    Raises:
        CredentialsError, CloudError: EC2 would refuse the change, or cannot be asked.
    """
    method, arguments_of = _CALLS[action]
    call = getattr(clients.get_without_retries(), method)
    subject = f"{request.instance_type} {request.market}" if action == "RunInstances" else "the launch"
    purpose = f"checking {subject} (ec2:{action}, dry run)"
    try:
        # A fleet's launch template does not exist yet: EC2 may check permissions before, or may not.
        with translate_errors(purpose, ignore=WOULD_SUCCEED | NOT_VISIBLE):
            call(DryRun=True, **arguments_of(request))
    except CredentialsError as error:
        # A template that does not exist has no tag, by which a policy could allow it.
        if action != "CreateFleet" or error.denial is None or error.denial.resource_type != "launch-template":
            raise


def _security_group(request: LaunchRequest) -> dict[str, Any]:
    tags = [tag_specification("security-group", request.tags)]
    vpc_id = request.machine.network.vpc_id
    vpc = {"VpcId": vpc_id} if vpc_id else {}
    return {"GroupName": NAME, "Description": "SSH from where dlcloud runs", "TagSpecifications": tags, **vpc}


def _instances(request: LaunchRequest) -> dict[str, Any]:
    arguments = run_instances_arguments(_before_the_launch(request))
    del arguments["ClientToken"]
    return arguments


def _before_the_launch(request: LaunchRequest) -> LaunchRequest:
    """Return the request without the placement group that the launch itself makes."""
    if request.machine.placement_group != NEW_GROUP:
        return request
    return replace(request, machine=replace(request.machine, placement_group=""))


def _template(request: LaunchRequest) -> dict[str, Any]:
    data = template_data(_before_the_launch(request), b64encode(request.user_data.encode()).decode())
    tags = [tag_specification("launch-template", request.tags)]
    return {"LaunchTemplateName": NAME, "LaunchTemplateData": data, "TagSpecifications": tags}


def _fleet(request: LaunchRequest) -> dict[str, Any]:
    spot = request.max_count if request.market is Market.SPOT else 0
    arguments = fleet_arguments(
        FleetRequest(
            template=NAME,
            pools=((request.instance_type, request.zone),),
            spot_count=spot,
            on_demand_count=request.max_count - spot,
            client_token="",
            tags=request.tags,
            requested_at=datetime.fromtimestamp(0, UTC),
            subnets=request.machine.network.subnets,
        )
    )
    del arguments["ClientToken"]
    return arguments


_CALLS: Mapping[str, tuple[str, Callable[[LaunchRequest], dict[str, Any]]]] = {
    "CreateSecurityGroup": ("create_security_group", _security_group),
    "RunInstances": ("run_instances", _instances),
    "CreateLaunchTemplate": ("create_launch_template", _template),
    "CreateFleet": ("create_fleet", _fleet),
}
