"""Find by tag everything of dlcloud's that exists in a region, without a store."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlcloud.cloud.account.roles import IamRoles
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.compute.batch_queues import AwsBatch
from dlcloud.cloud.compute.images import Ec2OwnImages
from dlcloud.cloud.compute.requests import read_instance
from dlcloud.model.account import HOME_TAG, OWNER_TAG, Owner, owner_of
from dlcloud.model.cluster import CLUSTER_TAG, NAME_TAG, Leftover
from dlcloud.model.errors import CredentialsError

log = logging.getLogger(__name__)

TAGGED = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
UNUSED = {"Name": "status", "Values": ["available"]}
GONE_FLEETS = {"deleted", "deleted_terminating", "deleted_running", "failed"}


class Ec2Leftovers:
    """What exists of dlcloud's in one region, of any machine or user.

    Args:
        clients: The region's clients.
        own_images: The region's images, which are leftovers of clusters too.
        roles: The roles of the region's clusters.
        batch: What clusters have of AWS Batch.
    """

    def __init__(
        self, *, clients: Clients, own_images: Ec2OwnImages, roles: IamRoles, batch: AwsBatch
    ) -> None:
        self._clients = clients
        self._own_images = own_images
        self._roles = roles
        self._batch = batch

    def find(self) -> list[Leftover]:
        """Return what exists: by three calls if there is nothing, one more for each kind that is tagged."""
        clients = self._clients
        with translate_errors(f"looking for resources of dlcloud in {clients.region} (ec2:DescribeTags)"):
            keys = [CLUSTER_TAG, OWNER_TAG, HOME_TAG]
            tags = clients.pages("ec2", "describe_tags", "Tags", Filters=[{"Name": "key", "Values": keys}])
        owners = _owners(tags)
        tags = [tag for tag in tags if tag["Key"] == CLUSTER_TAG]
        region = _TaggedRegion(
            clients=clients,
            kinds={tag["ResourceType"] for tag in tags},
            clusters={tag["ResourceId"]: tag["Value"] for tag in tags},
            fleet_ids=[tag["ResourceId"] for tag in tags if tag["ResourceType"] == "fleet"],
        )
        leftovers = [
            *region.instances(),
            *region.volumes(),
            *region.interfaces(),
            *region.fleets(),
            *region.launch_templates(),
            *region.security_groups(),
            *self._own_images.leftovers(region.kinds),
            *_find_allowed("roles", self._roles.find),
            *_find_allowed("AWS Batch", self._batch.find),
            *region.placement_groups(),
        ]
        return [replace(item, owner=self._owner(item, owners)) for item in leftovers]

    def _owner(self, item: Leftover, owners: Mapping[str, Owner]) -> Owner:
        """Return who made the cluster of a resource: by EC2's tags of any of its parts, else by its own."""
        if item.cluster_id in owners:
            return owners[item.cluster_id]
        return self._roles.owner(item.resource_id) if item.kind == "iam-role" else item.owner

    def delete_volumes(self, volume_ids: Sequence[str]) -> None:
        """Delete volumes; no error for one that is gone."""
        for volume_id in volume_ids:
            with translate_errors(
                f"deleting {volume_id} (ec2:DeleteVolume)", ignore={"InvalidVolume.NotFound"}
            ):
                self._clients.get("ec2").delete_volume(VolumeId=volume_id)

    def delete_interfaces(self, interface_ids: Sequence[str]) -> None:
        """Delete network interfaces; no error for one that is gone."""
        for interface_id in interface_ids:
            with translate_errors(
                f"deleting {interface_id} (ec2:DeleteNetworkInterface)",
                ignore={"InvalidNetworkInterfaceID.NotFound"},
            ):
                self._clients.get("ec2").delete_network_interface(NetworkInterfaceId=interface_id)


def _find_allowed(name: str, find: Callable[[], Iterable[Leftover]]) -> list[Leftover]:
    """Return what is found of clusters; nothing where the caller may not list any, and so made none."""
    try:
        return list(find())
    except CredentialsError as error:
        if not error.is_final:
            raise
        log.warning("%s: not looked for: %s", name, error.message)
        return []


def _owners(tags: Iterable[Mapping[str, str]]) -> dict[str, Owner]:
    """Return who made each cluster, by the tags of any of its resources."""
    by_resource: dict[str, dict[str, str]] = {}
    for tag in tags:
        by_resource.setdefault(tag["ResourceId"], {})[tag["Key"]] = tag["Value"]
    return {own.get(CLUSTER_TAG, ""): owner_of(own) for own in by_resource.values() if OWNER_TAG in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaggedRegion:
    """The kinds of tagged resources, and the cluster of each resource by its id."""

    clients: Clients
    kinds: set[str]
    clusters: Mapping[str, str]
    fleet_ids: list[str]

    def instances(self) -> Iterator[Leftover]:
        if "instance" not in self.kinds:
            return
        with translate_errors("listing instances (ec2:DescribeInstances)"):
            reservations = self.clients.pages("ec2", "describe_instances", "Reservations", Filters=TAGGED)
        for instance in (read_instance(answer) for some in reservations for answer in some["Instances"]):
            if instance.alive:
                yield Leftover(
                    kind="instance",
                    resource_id=instance.instance_id,
                    cluster_id=instance.tags[CLUSTER_TAG],
                    name=instance.tags.get(NAME_TAG, ""),
                    region=self.clients.region,
                    instance=instance,
                )

    def volumes(self) -> Iterator[Leftover]:
        """Yield the volumes that are not attached; the others are deleted with their instances."""
        if "volume" in self.kinds:
            with translate_errors("listing volumes (ec2:DescribeVolumes)"):
                answers = self.clients.pages("ec2", "describe_volumes", "Volumes", Filters=[*TAGGED, UNUSED])
            for volume in answers:
                yield self._leftover("volume", volume, "VolumeId", size_gib=int(volume["Size"]))

    def interfaces(self) -> Iterator[Leftover]:
        """Yield the network interfaces that are not attached."""
        if "network-interface" in self.kinds:
            with translate_errors("listing network interfaces (ec2:DescribeNetworkInterfaces)"):
                answers = self.clients.pages(
                    "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=[*TAGGED, UNUSED]
                )
            for interface in answers:
                yield self._leftover("network-interface", interface, "NetworkInterfaceId")

    def fleets(self) -> Iterator[Leftover]:
        if self.fleet_ids:
            with translate_errors("listing fleets (ec2:DescribeFleets)"):
                # EC2 lists an instant fleet only by its id.
                answers = self.clients.pages("ec2", "describe_fleets", "Fleets", FleetIds=self.fleet_ids)
            for fleet in answers:
                if fleet.get("FleetState") not in GONE_FLEETS:
                    yield self._leftover("fleet", fleet, "FleetId")

    def launch_templates(self) -> Iterator[Leftover]:
        if "launch-template" in self.kinds:
            with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
                answers = self.clients.pages(
                    "ec2", "describe_launch_templates", "LaunchTemplates", Filters=TAGGED
                )
            for template in answers:
                yield self._leftover("launch-template", template, "LaunchTemplateId")

    def security_groups(self) -> Iterator[Leftover]:
        if "security-group" in self.kinds:
            with translate_errors("listing security groups (ec2:DescribeSecurityGroups)"):
                answers = self.clients.pages(
                    "ec2", "describe_security_groups", "SecurityGroups", Filters=TAGGED
                )
            for group in answers:
                yield self._leftover("security-group", group, "GroupId")

    def placement_groups(self) -> Iterator[Leftover]:
        if "placement-group" in self.kinds:
            with translate_errors("listing placement groups (ec2:DescribePlacementGroups)"):
                answer = self.clients.get("ec2").describe_placement_groups(Filters=TAGGED)
            for group in answer["PlacementGroups"]:
                yield self._leftover("placement-group", group, "GroupId")

    def _leftover(self, kind: str, answer: Mapping[str, Any], id_key: str, *, size_gib: int = 0) -> Leftover:
        resource_id = answer[id_key]
        return Leftover(
            kind=kind,
            resource_id=resource_id,
            cluster_id=self.clusters.get(resource_id, ""),
            name="",
            region=self.clients.region,
            size_gib=size_gib,
        )
