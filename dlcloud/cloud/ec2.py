"""The one implementation of `core.protocols.Cloud`: EC2 over boto3, at AWS or at the local endpoint."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from botocore.exceptions import ClientError

from dlcloud.cloud import buckets, capacity, control, control_role, network, own_images
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, retry_launch, translate_errors
from dlcloud.cloud.images import Images
from dlcloud.cloud.instance_types import InstanceTypes
from dlcloud.cloud.leftovers import find_leftovers
from dlcloud.cloud.partitions import partition_of
from dlcloud.cloud.prices import Prices
from dlcloud.cloud.requests import (
    cluster_filter,
    fleet_arguments,
    read_fleet,
    read_instance,
    run_instances_arguments,
    tag_filter,
    tag_list,
    tag_specification,
    template_data,
    template_name,
)
from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG, Leftover
from dlcloud.model.instance import X86_64, Image, Instance, InstanceType, Market, Price
from dlcloud.model.own_images import OwnImage
from dlcloud.planning.control_claim import ControlClaim
from dlcloud.planning.protocols import FleetRequest, Identity, LaunchRequest, LaunchResult
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.planning.storage import join_policies, pass_policy
from dlcloud.recipe.data_set import DataSet

NO_TEMPLATE = {
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFoundException",
}
ENDS_A_CALL = 500
"""Source: EC2 API reference, TerminateInstances: up to 1,000 ids, and rather fewer."""
MOST_NAMED = 5
FLEETS_A_CALL = 25  # Source: EC2 API reference, DeleteFleets: instant fleets a request


class Ec2Cloud:
    """EC2 in one region; `core.protocols.Cloud` documents the methods.

    Args:
        clients: The region's boto3 clients.
        types: The region's instance types.
        images: The region's machine images.
        prices: The region's prices.
        own_cidr: Looks up the caller's own network.
        control_policy: Renders the policy of a cluster's role, from the cluster's id, region and partition.
        inside: The caller reaches the instances by private addresses, as one of them does.
        pause: Waits so many seconds before a refused call is repeated.
    """

    def __init__(
        self,
        *,
        clients: Clients,
        types: InstanceTypes,
        images: Images,
        prices: Prices,
        own_cidr: Callable[[], str],
        control_policy: Callable[[str, str, str], str],
        pause: Callable[[float], None],
        inside: bool = False,
    ) -> None:
        self._clients = clients
        self._types = types
        self._images = images
        self._prices = prices
        self._own_cidr = own_cidr
        self._control_policy = control_policy
        self._pause = pause
        self.by_private_addresses = inside
        self.region = clients.region

    def identity(self) -> Identity:
        with translate_errors("checking the credentials (sts:GetCallerIdentity)"):
            answer = self._clients.get("sts").get_caller_identity()
        return Identity(account=answer["Account"], arn=answer["Arn"])

    def caller_cidr(self) -> str:
        return self._own_cidr()

    def hardware(self, instance_types: Sequence[str]) -> dict[str, InstanceType]:
        return self._types.hardware(instance_types)

    def offered_types(self, patterns: Sequence[str] = ()) -> list[InstanceType]:
        """Return the types that the region offers: those of names like `c7g.*`, all without any."""
        return self._types.offered(patterns)

    def offered_zones(self, instance_types: Sequence[str]) -> dict[str, tuple[str, ...]]:
        with translate_errors("looking up zones that offer the types (ec2:DescribeInstanceTypeOfferings)"):
            offers = self._clients.pages(
                "ec2",
                "describe_instance_type_offerings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": list(instance_types)}],
            )
        zones: dict[str, set[str]] = {}
        for offer in offers:
            zones.setdefault(offer["InstanceType"], set()).add(offer["Location"])
        return {name: tuple(sorted(locations)) for name, locations in zones.items()}

    def resolve_image(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image:
        return self._images.resolve(image, gpu=gpu, architecture=architecture)

    def spot_history(self, instance_types: Sequence[str], since: datetime) -> list[Price]:
        """Return every spot price of types in each zone since a time."""
        return self._prices.spot_history(instance_types, since)

    def prices(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        on_demand = self._prices.on_demand(instance_types)
        spot = self._prices.spot(instance_types) if Market.SPOT in markets else []
        return on_demand + spot

    def reservations(self) -> list[CapacityReservation]:
        return capacity.list_reservations(self._clients)

    def create_placement_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        return capacity.create_placement_group(self._clients, cluster_id, tags)

    def delete_placement_group(self, cluster_id: str) -> None:
        capacity.delete_placement_group(self._clients, cluster_id, pause=self._pause)

    def instances(self, cluster_id: str = "") -> list[Instance]:
        """Return a cluster's instances, terminated ones included while EC2 still lists them."""
        tag = (CLUSTER_TAG, cluster_id) if cluster_id else (MANAGED_TAG, "true")
        with translate_errors("listing instances (ec2:DescribeInstances)"):
            reservations = self._clients.pages(
                "ec2", "describe_instances", "Reservations", Filters=tag_filter(*tag)
            )
        instances = [
            self._with_host(read_instance(answer))
            for reservation in reservations
            for answer in reservation["Instances"]
        ]
        return sorted(instances, key=lambda instance: (instance.launched_at, instance.instance_id))

    def create_security_group(self, cluster_id: str, tags: Mapping[str, str], *, vpc_id: str = "") -> str:
        return network.create_group(self._clients, cluster_id, tags, vpc_id=vpc_id)

    def find_security_group(self, cluster_id: str) -> str:
        return network.find_group(self._clients, cluster_id)

    def allow_ssh(self, security_group_id: str, cidr: str, *, named: bool = False) -> None:
        network.allow_ssh(self._clients, security_group_id, cidr, named=named)

    def move_ssh(self, cluster_id: str, cidr: str) -> list[str] | None:
        return network.move_ssh(self._clients, cluster_id, cidr)

    def allow_peers(self, security_group_id: str) -> None:
        network.allow_peers(self._clients, security_group_id)

    def allow_fabric(self, security_group_id: str) -> None:
        network.allow_fabric(self._clients, security_group_id)

    def revoke_ssh(self, cluster_id: str) -> None:
        network.revoke_access(self._clients, cluster_id)

    def delete_security_groups(self, cluster_id: str) -> list[str]:
        return network.delete_groups(self._clients, cluster_id)

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Make one RunInstances call; its token makes a repeated one harmless."""
        action = f"launching {request.max_count} {request.instance_type} {request.market}"
        zone = f" in {request.zone}" if request.zone else ""
        with translate_errors(f"{action}{zone} (ec2:RunInstances)"):
            answer = retry_launch(
                self._clients.get_without_retries().run_instances,
                run_instances_arguments(request),
                pause=self._pause,
            )
        return [read_instance(instance) for instance in answer["Instances"]]

    def create_launch_template(self, request: LaunchRequest) -> str:
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

    def launch_fleet(self, request: FleetRequest) -> LaunchResult:
        """Make one CreateFleet call; its token makes a repeated one harmless."""
        action = f"launching {request.spot_count} spot and {request.on_demand_count} on-demand instances"
        with translate_errors(f"{action} from {len(request.pools)} pools (ec2:CreateFleet)"):
            answer = retry_launch(
                self._clients.get_without_retries().create_fleet, fleet_arguments(request), pause=self._pause
            )
        return read_fleet(answer, request)

    def fleets(self, cluster_id: str) -> list[str]:
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

    def delete_fleets(self, fleet_ids: Sequence[str]) -> None:
        for start in range(0, len(fleet_ids), FLEETS_A_CALL):
            batch = list(fleet_ids[start : start + FLEETS_A_CALL])
            with translate_errors(f"deleting {', '.join(batch)} (ec2:DeleteFleets)"):
                self._clients.get("ec2").delete_fleets(FleetIds=batch, TerminateInstances=True)

    def delete_launch_templates(self, cluster_id: str) -> None:
        with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
            answer = self._clients.get("ec2").describe_launch_templates(Filters=cluster_filter(cluster_id))
        for template in answer["LaunchTemplates"]:
            name = template["LaunchTemplateName"]
            with translate_errors(
                f"deleting launch template {name} (ec2:DeleteLaunchTemplate)", ignore=NO_TEMPLATE
            ):
                self._clients.get("ec2").delete_launch_template(LaunchTemplateName=name)

    def terminate(self, instance_ids: Sequence[str]) -> None:
        for start in range(0, len(instance_ids), ENDS_A_CALL):
            self._terminate(list(instance_ids[start : start + ENDS_A_CALL]))

    def _terminate(self, instance_ids: list[str]) -> None:
        shown = ", ".join(instance_ids[:MOST_NAMED])
        more = f" and {len(instance_ids) - MOST_NAMED} more" if len(instance_ids) > MOST_NAMED else ""
        with translate_errors(f"terminating {shown}{more} (ec2:TerminateInstances)"):
            try:
                self._clients.get("ec2").terminate_instances(InstanceIds=instance_ids)
            except ClientError as error:
                if error_code(error) != "InvalidInstanceID.NotFound":
                    raise
                # EC2 refuses the whole call for one id that is gone: halves are asked for, down to that id.
                middle = len(instance_ids) // 2
                for part in (instance_ids[:middle], instance_ids[middle:]) if middle else ():
                    self._terminate(part)

    def regions(self) -> list[str]:
        with translate_errors("listing regions (ec2:DescribeRegions)"):
            answer = self._clients.get("ec2").describe_regions()
        return sorted(region["RegionName"] for region in answer["Regions"])

    def leftovers(self) -> list[Leftover]:
        return find_leftovers(self._clients)

    def delete_volumes(self, volume_ids: Sequence[str]) -> None:
        for volume_id in volume_ids:
            with translate_errors(
                f"deleting {volume_id} (ec2:DeleteVolume)", ignore={"InvalidVolume.NotFound"}
            ):
                self._clients.get("ec2").delete_volume(VolumeId=volume_id)

    def delete_interfaces(self, interface_ids: Sequence[str]) -> None:
        for interface_id in interface_ids:
            with translate_errors(
                f"deleting {interface_id} (ec2:DeleteNetworkInterface)",
                ignore={"InvalidNetworkInterfaceID.NotFound"},
            ):
                self._clients.get("ec2").delete_network_interface(NetworkInterfaceId=interface_id)

    def create_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> str:
        return own_images.create_image(self._clients, instance_id, name, tags)

    def own_images(self, cluster_id: str = "") -> list[OwnImage]:
        return own_images.own_images(self._clients, cluster_id)

    def delete_images(self, image_ids: Sequence[str]) -> None:
        own_images.delete_images(self._clients, image_ids, pause=self._pause)

    def delete_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        own_images.delete_snapshots(self._clients, snapshot_ids, pause=self._pause)

    def put_control_role(
        self,
        cluster_id: str,
        tags: Mapping[str, str],
        *,
        boundary: str = "",
        storage: str = "",
        own: str = "",
    ) -> str:
        partition = partition_of(self.region)
        role_name = control_role.storage_role_name(cluster_id)
        more = [own] if own else []
        more += [storage, pass_policy(self.region, cluster_id, role_name)] if storage else []
        policy = self._control_policy(cluster_id, self.region, partition.name)
        policy = join_policies([policy, *(_in_partition(text, partition.name) for text in more)])
        role = control_role.Role(
            cluster_id=cluster_id,
            policy=policy,
            principal=partition.ec2_principal,
            tags=tags,
            boundary=boundary,
        )
        return control_role.put_role(self._clients, role, pause=self._pause)

    @property
    def endpoint_url(self) -> str:
        return self._clients.endpoint_url

    def put_storage_role(
        self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = ""
    ) -> str:
        if self._clients.on_instance:
            # The launcher has made it: a controller may hand it on, and not change it.
            return control_role.storage_role_name(cluster_id)
        partition = partition_of(self.region)
        role = control_role.Role(
            cluster_id=control_role.storage_id(cluster_id),
            policy=_in_partition(policy, partition.name),
            principal=partition.ec2_principal,
            tags=tags,
            boundary=boundary,
        )
        return control_role.put_role(self._clients, role, pause=self._pause)

    def describe_prefix(self, uri: str) -> DataSet:
        return buckets.describe_prefix(self._clients, uri)

    def newest_step(self, uri: str) -> int:
        return buckets.newest_step(self._clients, uri)

    def bucket_region(self, uri: str) -> str:
        return buckets.bucket_region(self._clients, uri)

    def attach_profile(self, instance_id: str, profile: str) -> None:
        control.attach_profile(self._clients, instance_id, profile, pause=self._pause)

    def claim_control(self, term: int, instance_id: str, tags: Mapping[str, str]) -> bool:
        return control.claim_control(self._clients, term, instance_id, tags)

    def control_claims(self, cluster_id: str) -> list[ControlClaim]:
        return control.find_claims(self._clients, cluster_id)

    def delete_control_role(self, cluster_id: str) -> None:
        control_role.delete_role(self._clients, cluster_id, pause=self._pause)
        if control_role.has_storage_role(self._clients, cluster_id):
            control_role.delete_role(self._clients, control_role.storage_id(cluster_id), pause=self._pause)

    def put_tags(self, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        with translate_errors(f"tagging {', '.join(resource_ids)} (ec2:CreateTags)"):
            self._clients.call_until_visible("create_tags", Resources=list(resource_ids), Tags=tag_list(tags))

    def admit_key(self, instance: Instance, user: str, public_key: str) -> None:
        """Send a public key to the instance (EC2 Instance Connect)."""
        action = f"sending a key to {instance.instance_id} (ec2-instance-connect:SendSSHPublicKey)"
        with translate_errors(action):
            self._clients.get("ec2-instance-connect").send_ssh_public_key(
                InstanceId=instance.instance_id,
                InstanceOSUser=user,
                SSHPublicKey=public_key,
                AvailabilityZone=instance.zone,
            )

    def _with_host(self, instance: Instance) -> Instance:
        """A security group's rule for its own instances holds for their private addresses only."""
        return replace(instance, host=instance.private_host) if self.by_private_addresses else instance


def _in_partition(policy: str, partition: str) -> str:
    """Return a policy whose ARNs name a partition."""
    return policy.replace("@PARTITION@", partition)
