"""The one place where EC2's arguments for a launch are written, and where its instances are read.

RunInstances, launch templates and dry runs all go through here, so that a dry run asks for exactly what the
launch will ask for. Every instance uses IMDSv2 only, has an encrypted disk, and is terminated, not stopped,
when it shuts down: the timer on the instance relies on that.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dlcloud.model.cluster import CLUSTER_TAG, NEW_GROUP, SSH_PORT_TAG, placement_group_name
from dlcloud.model.instance import SSH_PORT, Instance, InstanceState, Market, is_burstable

if TYPE_CHECKING:  # most commands launch nothing
    from dlcloud.planning.launch_request import LaunchRequest, NetworkInterface

ENDED = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_specification(resource: str, tags: Mapping[str, str]) -> dict[str, Any]:
    return {"ResourceType": resource, "Tags": tag_list(tags)}


def run_instances_arguments(request: "LaunchRequest") -> dict[str, Any]:
    spot = request.market is Market.SPOT
    resources = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
    subnet_id = request.machine.network.subnets.get(request.zone, "")
    arguments: dict[str, Any] = {
        **_machine(request, subnet_id),
        "InstanceType": request.instance_type,
        "MinCount": request.min_count,
        "MaxCount": request.max_count,
        "ClientToken": request.client_token,
        "UserData": request.user_data,
        "TagSpecifications": [tag_specification(resource, request.tags) for resource in resources],
    }
    if request.zone and not subnet_id:
        arguments["Placement"] = {"AvailabilityZone": request.zone, **arguments.get("Placement", {})}
    if request.in_block:
        arguments["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if spot:
        arguments["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
                **_max_price(request),
            },
        }
    return arguments


def template_data(request: "LaunchRequest", user_data_base64: str) -> dict[str, Any]:
    """Return a launch template; the fleet adds types, zones, market and the tags of instances.

    The request's type says only whether the template is for burstable types.
    """
    resources = ("volume", "network-interface")
    return {
        # A fleet names the subnets itself.
        **_machine(request, subnet_id=""),
        "UserData": user_data_base64,
        "TagSpecifications": [tag_specification(resource, request.tags) for resource in resources],
    }


def template_name(cluster_id: str, data: Mapping[str, Any]) -> str:
    """Return a name derived from the content, so that a repeated creation finds the template."""
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return f"dlcloud-{cluster_id}-{digest[:12]}"


def read_instance(answer: Mapping[str, Any]) -> Instance:
    """Read an instance of an answer of RunInstances or DescribeInstances."""
    tags = {tag["Key"]: tag["Value"] for tag in answer.get("Tags") or ()}
    return Instance(
        instance_id=answer["InstanceId"],
        instance_type=answer["InstanceType"],
        market=Market.SPOT if answer.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        zone=answer.get("Placement", {}).get("AvailabilityZone", ""),
        state=InstanceState(answer["State"]["Name"]),
        state_reason=(answer.get("StateReason") or {}).get("Message", ""),
        launched_at=answer["LaunchTime"],
        host=answer.get("PublicIpAddress") or "",
        ssh_port=int(tags.get(SSH_PORT_TAG, SSH_PORT)),
        tags=tags,
        ended_at=_ended_at(answer),
        private_host=answer.get("PrivateIpAddress") or "",
        reservation_id=answer.get("CapacityReservationId") or "",
    )


def tag_filter(key: str, value: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{key}", "Values": [value]}]


def cluster_filter(cluster_id: str) -> list[dict[str, Any]]:
    return tag_filter(CLUSTER_TAG, cluster_id)


def _ended_at(answer: Mapping[str, Any]) -> datetime | None:
    """Read the end of an instance from a reason like `User initiated (2026-09-01 12:00:00 GMT)`.

    Source: EC2 API reference, Instance: StateTransitionReason; a stopped instance has one, too.
    """
    time = ENDED.search(answer.get("StateTransitionReason") or "")
    if time is None or answer["State"]["Name"] not in {"shutting-down", "terminated"}:
        return None
    return datetime.strptime(time[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def _machine(request: "LaunchRequest", subnet_id: str) -> dict[str, Any]:
    """Return the arguments common to all instances: IMDSv2 only, encrypted disk, terminated by shutdown."""
    machine = request.machine
    placement = _placement(request)
    return {
        "ImageId": machine.image.image_id,
        **_network(request, subnet_id),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "HttpEndpoint": "enabled",
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": machine.image.root_device,
                "Ebs": {
                    "VolumeSize": machine.disk_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                    **({"KmsKeyId": machine.kms_key} if machine.kms_key else {}),
                },
            }
        ],
        **({"IamInstanceProfile": {"Name": machine.profile}} if machine.profile else {}),
        **({"Placement": placement} if placement else {}),
        **_reservation(request),
        **_credits(request),
    }


def _credits(request: "LaunchRequest") -> dict[str, Any]:
    """Return that a burstable type is slowed down when its CPU credits are spent, and bills none beyond them.

    T3, T3a and T4g would bill surplus credits in addition to their price, as no plan could foresee. EC2
    refuses the key for other types (InstanceCreditSpecification.NotSupported).
    Source: EC2 API reference, RunInstances: CreditSpecification; terraform-provider-aws, issues 5067, 5081.
    """
    return {"CreditSpecification": {"CpuCredits": "standard"}} if is_burstable(request.instance_type) else {}


def _placement(request: "LaunchRequest") -> dict[str, str]:
    """Return the tenancy, and the placement group: the user's, or the one that the cluster makes before."""
    group, tenancy = request.machine.placement_group, request.machine.tenancy
    if group == NEW_GROUP:
        group = placement_group_name(request.tags[CLUSTER_TAG])
    return {
        **({"GroupName": group} if group else {}),
        **({"Tenancy": tenancy} if tenancy != "default" else {}),
    }


def _reservation(request: "LaunchRequest") -> dict[str, Any]:
    """Return what the launch says of Capacity Reservations; nothing where EC2 may choose.

    Source: EC2 API reference, CapacityReservationSpecification.
    """
    specification: dict[str, Any] = {}
    if request.reservation_id:
        specification = {"CapacityReservationTarget": {"CapacityReservationId": request.reservation_id}}
    elif request.machine.outside_reservations:
        specification = {"CapacityReservationPreference": "none"}
    return {"CapacityReservationSpecification": specification} if specification else {}


def _network(request: "LaunchRequest", subnet_id: str) -> dict[str, Any]:
    """Return groups and subnet, in the network interface if that says whether there is a public address.

    Source: EC2 refuses both in one request (InvalidParameterCombination); aws/aws-cli, issue 1019.
    """
    network, interfaces = request.machine.network, request.machine.interfaces
    groups = [group for group in (request.security_group_id, *network.groups) if group]
    subnet = {"SubnetId": subnet_id} if subnet_id else {}
    if network.public_ip is None and not interfaces:
        return {**({"SecurityGroupIds": groups} if groups else {}), **subnet}
    shared = {"DeleteOnTermination": True, **({"Groups": groups} if groups else {}), **subnet}
    first: dict[str, Any] = {"DeviceIndex": 0, **shared}
    if network.public_ip is not None and len(interfaces) <= 1:
        first["AssociatePublicIpAddress"] = network.public_ip
    cards = [_interface(interface, shared) for interface in interfaces]
    return {"NetworkInterfaces": [{**first, **cards[0]}, *cards[1:]] if cards else [first]}


def _interface(interface: "NetworkInterface", shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return an interface on a network card; the first card needs no index."""
    card = {"NetworkCardIndex": interface.card} if interface.card else {}
    return {**shared, "DeviceIndex": interface.device, "InterfaceType": interface.kind, **card}


def _max_price(request: "LaunchRequest") -> dict[str, str]:
    return {} if request.max_hourly_usd is None else {"MaxPrice": f"{request.max_hourly_usd:f}"}
