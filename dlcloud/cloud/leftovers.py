"""Find by tag what exists in a region, with nothing else to go by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.control_role import find_roles
from dlcloud.cloud.faults import translate_errors
from dlcloud.cloud.requests import instance
from dlcloud.core.cluster import CLUSTER_TAG, NAME_TAG, Leftover

TAGGED = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
UNUSED = {"Name": "status", "Values": ["available"]}
GONE_FLEETS = {"deleted", "deleted_terminating", "deleted_running", "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The ids of tagged resources by their kind, and the cluster of each."""

    by_kind: Mapping[str, list[str]]
    clusters: Mapping[str, str]


def find_leftovers(clients: Clients) -> list[Leftover]:
    """Return what exists: two calls where there is nothing, a few more where there is something."""
    found = _tagged(clients)
    return [
        *_instances(clients, found),
        *_volumes(clients, found),
        *_interfaces(clients, found),
        *_fleets(clients, found),
        *_templates(clients, found),
        *_groups(clients, found),
        *find_roles(clients),
    ]


def _tagged(clients: Clients) -> _Found:
    with translate_errors(f"looking for what dlcloud made in {clients.region} (ec2:DescribeTags)"):
        pages = (
            clients.read("ec2")
            .get_paginator("describe_tags")
            .paginate(Filters=[{"Name": "key", "Values": [CLUSTER_TAG]}])
        )
        tags = [tag for page in pages for tag in page["Tags"]]
    by_kind: dict[str, list[str]] = {}
    for tag in tags:
        by_kind.setdefault(tag["ResourceType"], []).append(tag["ResourceId"])
    return _Found(by_kind=by_kind, clusters={tag["ResourceId"]: tag["Value"] for tag in tags})


def _instances(clients: Clients, found: _Found) -> Iterable[Leftover]:
    if "instance" not in found.by_kind:
        return
    with translate_errors("listing instances (ec2:DescribeInstances)"):
        pages = clients.read("ec2").get_paginator("describe_instances").paginate(Filters=TAGGED)
        every = [
            instance(each)
            for page in pages
            for reservation in page["Reservations"]
            for each in reservation["Instances"]
        ]
    for each in every:
        if each.alive:
            yield Leftover(
                kind="instance",
                resource_id=each.instance_id,
                cluster_id=each.tags[CLUSTER_TAG],
                name=each.tags.get(NAME_TAG, ""),
                region=clients.region,
                instance=each,
            )


def _volumes(clients: Clients, found: _Found) -> Iterable[Leftover]:
    """Yield the volumes that no instance holds; the others go with theirs."""
    if "volume" not in found.by_kind:
        return
    with translate_errors("listing volumes (ec2:DescribeVolumes)"):
        answer = clients.read("ec2").describe_volumes(
            Filters=[
                {"Name": "tag-key", "Values": [CLUSTER_TAG]},
                {"Name": "status", "Values": ["available"]},
            ]
        )
    for volume in answer["Volumes"]:
        yield _leftover(clients, found, "volume", volume["VolumeId"], size_gib=int(volume["Size"]))


def _interfaces(clients: Clients, found: _Found) -> Iterable[Leftover]:
    """Yield the network interfaces that no instance holds."""
    if "network-interface" not in found.by_kind:
        return
    with translate_errors("listing network interfaces (ec2:DescribeNetworkInterfaces)"):
        answer = clients.read("ec2").describe_network_interfaces(
            Filters=[
                {"Name": "tag-key", "Values": [CLUSTER_TAG]},
                {"Name": "status", "Values": ["available"]},
            ]
        )
    for card in answer["NetworkInterfaces"]:
        yield _leftover(clients, found, "network-interface", card["NetworkInterfaceId"])


def _fleets(clients: Clients, found: _Found) -> Iterable[Leftover]:
    fleet_ids = found.by_kind.get("fleet")
    if not fleet_ids:
        return
    with translate_errors("listing fleets (ec2:DescribeFleets)"):
        # EC2 tells of an instant fleet only where it is asked for by its id.
        answer = clients.read("ec2").describe_fleets(FleetIds=fleet_ids)
    for fleet in answer["Fleets"]:
        if fleet.get("FleetState") not in GONE_FLEETS:
            yield _leftover(clients, found, "fleet", fleet["FleetId"])


def _templates(clients: Clients, found: _Found) -> Iterable[Leftover]:
    if "launch-template" not in found.by_kind:
        return
    with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
        answer = clients.read("ec2").describe_launch_templates(Filters=TAGGED)
    for template in answer["LaunchTemplates"]:
        yield _leftover(clients, found, "launch-template", template["LaunchTemplateId"])


def _groups(clients: Clients, found: _Found) -> Iterable[Leftover]:
    if "security-group" not in found.by_kind:
        return
    with translate_errors("listing security groups (ec2:DescribeSecurityGroups)"):
        answer = clients.read("ec2").describe_security_groups(Filters=TAGGED)
    for group in answer["SecurityGroups"]:
        yield _leftover(clients, found, "security-group", group["GroupId"])


def _leftover(clients: Clients, found: _Found, kind: str, resource_id: str, *, size_gib: int = 0) -> Leftover:
    return Leftover(
        kind=kind,
        resource_id=resource_id,
        cluster_id=found.clusters.get(resource_id, ""),
        name="",
        region=clients.region,
        size_gib=size_gib,
    )
