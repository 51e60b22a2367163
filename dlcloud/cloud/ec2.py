"""The one Cloud: EC2 over boto3, at AWS or at the local endpoint."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud import images
from dlcloud.cloud.catalog import Catalog
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translated
from dlcloud.cloud.prices import Prices
from dlcloud.core.cluster import CLUSTER_TAG, MANAGED_TAG, SSH_PORT_TAG
from dlcloud.core.instance import Image, Instance, InstanceState, InstanceType, Market, Price
from dlcloud.core.ports import Identity, LaunchRequest

SSH_PORT = 22


class Ec2Cloud:
    """EC2 in one region; see `core.ports.Cloud` for what each method promises.

    Args:
        clients: The region's boto3 clients.
        catalog: What is known of types without asking.
        prices: What they cost.
        own_cidr: Tells the caller's own network.
    """

    def __init__(
        self, *, clients: Clients, catalog: Catalog, prices: Prices, own_cidr: Callable[[], str]
    ) -> None:
        self._clients = clients
        self._catalog = catalog
        self._prices = prices
        self._own_cidr = own_cidr
        self.region = clients.region

    def identity(self) -> Identity:
        """Return who is calling."""
        with translated("checking the credentials (sts:GetCallerIdentity)"):
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
        with translated("asking which zones offer the types (ec2:DescribeInstanceTypeOfferings)"):
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
        with translated("listing instances (ec2:DescribeInstances)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_instances")
                .paginate(Filters=[{"Name": f"tag:{tag[0]}", "Values": [tag[1]]}])
            )
            found = [
                instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            ]
        return sorted(
            (_instance(answer) for answer in found), key=lambda each: (each.launched_at, each.instance_id)
        )

    def create_security_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Make the cluster's security group in the default VPC, or find it."""
        with translated("creating the security group (ec2:CreateSecurityGroup)"):
            try:
                answer = self._clients.launch().create_security_group(
                    GroupName=_group_name(cluster_id),
                    Description="SSH from where dlcloud runs",
                    TagSpecifications=[_tagged("security-group", tags)],
                )
                return str(answer["GroupId"])
            except ClientError as error:
                if error_code(error) != "InvalidGroup.Duplicate":
                    raise
        return self._security_groups(cluster_id)[0]

    def allow_ssh(self, security_group_id: str, cidr: str) -> None:
        """Open port 22 to one network."""
        version = "Ipv6Ranges" if ":" in cidr else "IpRanges"
        key = "CidrIpv6" if ":" in cidr else "CidrIp"
        permission = {
            "IpProtocol": "tcp",
            "FromPort": SSH_PORT,
            "ToPort": SSH_PORT,
            version: [{key: cidr, "Description": "dlcloud"}],
        }
        with translated("allowing SSH (ec2:AuthorizeSecurityGroupIngress)"):
            try:
                self._clients.read("ec2").authorize_security_group_ingress(
                    GroupId=security_group_id, IpPermissions=[permission]
                )
            except ClientError as error:
                if error_code(error) != "InvalidPermission.Duplicate":
                    raise

    def launch(self, request: LaunchRequest) -> list[Instance]:
        """Make one RunInstances call; its token makes a repeated one harmless."""
        what = f"launching {request.max_count} {request.instance_type} {request.market}"
        where = f" in {request.zone}" if request.zone else ""
        with translated(f"{what}{where} (ec2:RunInstances)"):
            answer = self._clients.launch().run_instances(**_run_instances(request))
        return [_instance(each) for each in answer["Instances"]]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances."""
        if not instance_ids:
            return
        with translated(f"terminating {', '.join(instance_ids)} (ec2:TerminateInstances)"):
            try:
                self._clients.read("ec2").terminate_instances(InstanceIds=list(instance_ids))
            except ClientError as error:
                if error_code(error) != "InvalidInstanceID.NotFound":
                    raise
                # EC2 refuses the whole call for one id that is gone: each gets a call of its own.
                if len(instance_ids) > 1:
                    for instance_id in instance_ids:
                        self.terminate([instance_id])

    def delete_security_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's groups; return those that are still in use."""
        in_use = []
        for group_id in self._security_groups(cluster_id):
            with translated(f"deleting {group_id} (ec2:DeleteSecurityGroup)"):
                try:
                    self._clients.read("ec2").delete_security_group(GroupId=group_id)
                except ClientError as error:
                    if error_code(error) == "DependencyViolation":
                        in_use.append(group_id)
                    elif error_code(error) != "InvalidGroup.NotFound":
                        raise
        return in_use

    def _security_groups(self, cluster_id: str) -> list[str]:
        with translated("listing security groups (ec2:DescribeSecurityGroups)"):
            answer = self._clients.read("ec2").describe_security_groups(
                Filters=[{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster_id]}]
            )
        return [group["GroupId"] for group in answer["SecurityGroups"]]


def _group_name(cluster_id: str) -> str:
    return f"dlcloud-{cluster_id}"


def _tagged(resource: str, tags: Mapping[str, str]) -> dict[str, Any]:
    return {"ResourceType": resource, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def _run_instances(request: LaunchRequest) -> dict[str, Any]:
    spot = request.market is Market.SPOT
    resources = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
    arguments: dict[str, Any] = {
        "InstanceType": request.instance_type,
        "ImageId": request.image.image_id,
        "MinCount": request.min_count,
        "MaxCount": request.max_count,
        "ClientToken": request.client_token,
        "UserData": request.user_data,
        "SecurityGroupIds": [request.security_group_id],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "HttpEndpoint": "enabled",
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": request.image.root_device,
                "Ebs": {
                    "VolumeSize": request.disk_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "TagSpecifications": [_tagged(resource, request.tags) for resource in resources],
    }
    if request.zone:
        arguments["Placement"] = {"AvailabilityZone": request.zone}
    if spot:
        arguments["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    return arguments


def _instance(answer: Mapping[str, Any]) -> Instance:
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
    )
