"""The one Cloud: EC2 over boto3, at AWS or at the local endpoint."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from botocore.exceptions import ClientError

from dlcloud.cloud import control_role, images, security_groups
from dlcloud.cloud.catalog import Catalog
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translate_errors
from dlcloud.cloud.leftovers import find_leftovers
from dlcloud.cloud.prices import Prices
from dlcloud.cloud.requests import (
    by_tag,
    fleet,
    instance,
    launched,
    of_cluster,
    run_instances,
    tagged,
    template_data,
    template_name,
)
from dlcloud.cloud.retry import retry_throttled
from dlcloud.core.cluster import CLUSTER_TAG, MANAGED_TAG, Leftover
from dlcloud.core.instance import Image, Instance, InstanceType, Market, Price
from dlcloud.core.protocols import FleetRequest, Identity, LaunchRequest, LaunchResult

NO_TEMPLATE = {
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFoundException",
}
FLEETS_A_CALL = 25  # Source: EC2 API reference, DeleteFleets: instant fleets a request


class Ec2Cloud:
    """EC2 in one region; see `core.ports.Cloud` for what each method promises.

    Args:
        clients: The region's boto3 clients.
        catalog: What is known of types without asking.
        prices: What they cost.
        own_cidr: Tells the caller's own network.
        control_policy: Returns what the role of a cluster may do, by the cluster's id and the region.
        inside: Whether the caller is one of the instances, which reaches the others by private addresses.
        pause: Waits so many seconds before a refused call is repeated.
    """

    def __init__(
        self,
        *,
        clients: Clients,
        catalog: Catalog,
        prices: Prices,
        own_cidr: Callable[[], str],
        control_policy: Callable[[str, str], str],
        pause: Callable[[float], None],
        inside: bool = False,
    ) -> None:
        self._clients = clients
        self._catalog = catalog
        self._prices = prices
        self._own_cidr = own_cidr
        self._control_policy = control_policy
        self._pause = pause
        self._inside = inside
        self.region = clients.region

    def identity(self) -> Identity:
        """Return who is calling."""
        with translate_errors("checking the credentials (sts:GetCallerIdentity)"):
            answer = self._clients.read("sts").get_caller_identity()
        return Identity(account=answer["Account"], arn=answer["Arn"])

    def caller_cidr(self) -> str:
        """Return the caller's own network."""
        return self._own_cidr()

    def hardware(self, instance_type: str) -> InstanceType | None:
        """Return the bundled table's word on a type."""
        return self._catalog.hardware(instance_type)

    def offered_zones(self, instance_types: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return which zones offer each type."""
        with translate_errors("asking which zones offer the types (ec2:DescribeInstanceTypeOfferings)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_instance_type_offerings")
                .paginate(
                    LocationType="availability-zone",
                    Filters=[{"Name": "instance-type", "Values": list(instance_types)}],
                )
            )
            offers = [offer for page in pages for offer in page["InstanceTypeOfferings"]]
        zones: dict[str, set[str]] = {}
        for offer in offers:
            zones.setdefault(offer["InstanceType"], set()).add(offer["Location"])
        return {name: tuple(sorted(where)) for name, where in zones.items()}

    def resolve_image(self, image: str, *, gpu: bool) -> Image:
        """Find the image that a recipe names."""
        return images.resolve(self._clients, image, gpu=gpu)

    def prices(self, instance_types: Sequence[str], markets: Sequence[Market]) -> list[Price]:
        """Return on-demand prices, and spot prices where spot is asked for."""
        found = [self._prices.on_demand(name) for name in instance_types]
        spot = self._prices.spot(instance_types) if Market.SPOT in markets else []
        return [price for price in found if price is not None] + spot

    def instances(self, cluster_id: str = "") -> list[Instance]:
        """Return a cluster's instances, terminated ones included while EC2 still tells of them."""
        tag = (CLUSTER_TAG, cluster_id) if cluster_id else (MANAGED_TAG, "true")
        with translate_errors("listing instances (ec2:DescribeInstances)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_instances")
                .paginate(Filters=by_tag(tag[0], [tag[1]]))
            )
            found = [
                each
                for page in pages
                for reservation in page["Reservations"]
                for each in reservation["Instances"]
            ]
        return sorted(
            (self._addressed(instance(answer)) for answer in found),
            key=lambda each: (each.launched_at, each.instance_id),
        )

    def create_security_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Make the cluster's security group in the default VPC, or find it."""
        return security_groups.create(self._clients, cluster_id, tags)

    def allow_ssh(self, security_group_id: str, cidr: str) -> None:
        """Open port 22 to one network."""
        security_groups.allow_ssh(self._clients, security_group_id, cidr)

    def allow_peers(self, security_group_id: str) -> None:
        """Open every TCP port to the group itself."""
        security_groups.allow_peers(self._clients, security_group_id)

    def revoke_ssh(self, cluster_id: str) -> None:
        """Take every ingress rule out of the cluster's groups."""
        security_groups.close(self._clients, cluster_id)

    def delete_security_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's groups; return those that are still in use."""
        return security_groups.delete(self._clients, cluster_id)

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Make one RunInstances call; its token makes a repeated one harmless."""
        what = f"launching {request.max_count} {request.instance_type} {request.market}"
        where = f" in {request.zone}" if request.zone else ""
        with translate_errors(f"{what}{where} (ec2:RunInstances)"):
            answer = retry_throttled(
                self._clients.launch().run_instances, run_instances(request), pause=self._pause
            )
        return [instance(each) for each in answer["Instances"]]

    def create_launch_template(self, request: LaunchRequest) -> str:
        """Make the launch template, or find it made."""
        data = template_data(request, b64encode(request.user_data.encode()).decode())
        name = template_name(request.tags[CLUSTER_TAG], data)
        with translate_errors("creating the launch template (ec2:CreateLaunchTemplate)"):
            try:
                self._clients.read("ec2").create_launch_template(
                    LaunchTemplateName=name,
                    LaunchTemplateData=data,
                    TagSpecifications=[tagged("launch-template", request.tags)],
                )
            except ClientError as error:
                if error_code(error) != "InvalidLaunchTemplateName.AlreadyExistsException":
                    raise
        return name

    def launch_fleet(self, request: FleetRequest) -> LaunchResult:
        """Make one CreateFleet call; its token makes a repeated one harmless."""
        what = f"launching {request.spot_count} spot and {request.on_demand_count} on-demand instances"
        with translate_errors(f"{what} from {len(request.pools)} pools (ec2:CreateFleet)"):
            answer = retry_throttled(self._clients.launch().create_fleet, fleet(request), pause=self._pause)
        return launched(answer, request)

    def fleets(self, cluster_id: str) -> list[str]:
        """Return the cluster's fleets by their tags: EC2 lists no instant fleet unless asked for its id."""
        wanted = {"key": [CLUSTER_TAG], "value": [cluster_id], "resource-type": ["fleet"]}
        with translate_errors("looking for fleets (ec2:DescribeTags)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_tags")
                .paginate(Filters=[{"Name": name, "Values": values} for name, values in wanted.items()])
            )
            return sorted(tag["ResourceId"] for page in pages for tag in page["Tags"])

    def delete_fleets(self, fleet_ids: Sequence[str]) -> None:
        """Delete instant fleets, as many a call as EC2 takes."""
        for start in range(0, len(fleet_ids), FLEETS_A_CALL):
            some = list(fleet_ids[start : start + FLEETS_A_CALL])
            with translate_errors(f"deleting {', '.join(some)} (ec2:DeleteFleets)"):
                self._clients.read("ec2").delete_fleets(FleetIds=some, TerminateInstances=True)

    def delete_launch_templates(self, cluster_id: str) -> None:
        """Delete what carries the cluster's tag."""
        with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
            answer = self._clients.read("ec2").describe_launch_templates(Filters=of_cluster(cluster_id))
        for template in answer["LaunchTemplates"]:
            name = template["LaunchTemplateName"]
            with translate_errors(f"deleting launch template {name} (ec2:DeleteLaunchTemplate)"):
                try:
                    self._clients.read("ec2").delete_launch_template(LaunchTemplateName=name)
                except ClientError as error:
                    if error_code(error) not in NO_TEMPLATE:
                        raise

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances."""
        if not instance_ids:
            return
        with translate_errors(f"terminating {', '.join(instance_ids)} (ec2:TerminateInstances)"):
            try:
                self._clients.read("ec2").terminate_instances(InstanceIds=list(instance_ids))
            except ClientError as error:
                if error_code(error) != "InvalidInstanceID.NotFound":
                    raise
                # EC2 refuses the whole call for one id that is gone: each gets a call of its own.
                if len(instance_ids) > 1:
                    for instance_id in instance_ids:
                        self.terminate([instance_id])

    def regions(self) -> list[str]:
        """Return the account's enabled regions."""
        with translate_errors("listing regions (ec2:DescribeRegions)"):
            answer = self._clients.read("ec2").describe_regions()
        return sorted(region["RegionName"] for region in answer["Regions"])

    def leftovers(self) -> list[Leftover]:
        """Return everything that carries dlcloud's tag and still exists."""
        return find_leftovers(self._clients)

    def delete_volumes(self, volume_ids: Sequence[str]) -> None:
        """Delete volumes, one call each."""
        for volume_id in volume_ids:
            with translate_errors(f"deleting {volume_id} (ec2:DeleteVolume)"):
                try:
                    self._clients.read("ec2").delete_volume(VolumeId=volume_id)
                except ClientError as error:
                    if error_code(error) != "InvalidVolume.NotFound":
                        raise

    def delete_interfaces(self, interface_ids: Sequence[str]) -> None:
        """Delete network interfaces, one call each."""
        for interface_id in interface_ids:
            with translate_errors(f"deleting {interface_id} (ec2:DeleteNetworkInterface)"):
                try:
                    self._clients.read("ec2").delete_network_interface(NetworkInterfaceId=interface_id)
                except ClientError as error:
                    if error_code(error) != "InvalidNetworkInterfaceID.NotFound":
                        raise

    def put_control_role(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Make the cluster's role with its instance profile, or what is missing of it."""
        policy = self._control_policy(cluster_id, self.region)
        return control_role.put_role(self._clients, cluster_id, policy, tags, pause=self._pause)

    def attach_profile(self, instance_id: str, profile: str) -> None:
        """Give an instance the profile, as soon as EC2 knows of it."""
        control_role.attach_profile(self._clients, instance_id, profile, pause=self._pause)

    def delete_control_role(self, cluster_id: str) -> None:
        """Delete the cluster's role with its instance profile."""
        control_role.delete_role(self._clients, cluster_id, pause=self._pause)

    def put_tags(self, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Add tags, all in one call."""
        labels = [{"Key": key, "Value": value} for key, value in tags.items()]
        with translate_errors(f"tagging {', '.join(resource_ids)} (ec2:CreateTags)"):
            self._clients.read("ec2").create_tags(Resources=list(resource_ids), Tags=labels)

    def admit_key(self, instance: Instance, user: str, public_key: str) -> None:
        """Send a public key to the instance (EC2 Instance Connect)."""
        what = f"asking {instance.instance_id} to let a key in (ec2-instance-connect:SendSSHPublicKey)"
        with translate_errors(what):
            self._clients.read("ec2-instance-connect").send_ssh_public_key(
                InstanceId=instance.instance_id,
                InstanceOSUser=user,
                SSHPublicKey=public_key,
                AvailabilityZone=instance.zone,
            )

    def _addressed(self, seen: Instance) -> Instance:
        """A security group's rule for its own instances holds for their private addresses only."""
        return replace(seen, host=seen.private_host) if self._inside else seen
