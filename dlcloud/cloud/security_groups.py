"""A cluster's security group: who may reach its instances."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translate_errors
from dlcloud.cloud.requests import SSH_PORT, of_cluster, tagged
from dlcloud.core.errors import CloudError


def create(clients: Clients, cluster_id: str, tags: Mapping[str, str]) -> str:
    """Make the cluster's security group in the default VPC, or find it."""
    with translate_errors("creating the security group (ec2:CreateSecurityGroup)"):
        try:
            answer = clients.read("ec2").create_security_group(
                GroupName=_group_name(cluster_id),
                Description="SSH from where dlcloud runs",
                TagSpecifications=[tagged("security-group", tags)],
            )
            return str(answer["GroupId"])
        except ClientError as error:
            if error_code(error) != "InvalidGroup.Duplicate":
                raise
    for group in _groups(clients, cluster_id):
        return str(group["GroupId"])
    raise CloudError(
        f"there is a security group {_group_name(cluster_id)} without dlcloud's tags", "delete it by hand"
    )


def allow_ssh(clients: Clients, security_group_id: str, cidr: str) -> None:
    """Open port 22 to one network."""
    version = "Ipv6Ranges" if ":" in cidr else "IpRanges"
    key = "CidrIpv6" if ":" in cidr else "CidrIp"
    permission = {
        "IpProtocol": "tcp",
        "FromPort": SSH_PORT,
        "ToPort": SSH_PORT,
        version: [{key: cidr, "Description": "dlcloud"}],
    }
    _allow(clients, security_group_id, permission, "SSH")


def allow_peers(clients: Clients, security_group_id: str) -> None:
    """Open every TCP port to the group itself."""
    peers = [{"GroupId": security_group_id, "Description": "dlcloud"}]
    permission = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": peers}
    _allow(clients, security_group_id, permission, "instances to reach each other")


def close(clients: Clients, cluster_id: str) -> None:
    """Take every ingress rule out of the cluster's groups."""
    for group in _groups(clients, cluster_id):
        rules = group["IpPermissions"]
        if not rules:
            continue
        with translate_errors("ending access over SSH (ec2:RevokeSecurityGroupIngress)"):
            try:
                clients.read("ec2").revoke_security_group_ingress(
                    GroupId=group["GroupId"], IpPermissions=rules
                )
            except ClientError as error:
                if error_code(error) not in {"InvalidPermission.NotFound", "InvalidGroup.NotFound"}:
                    raise


def delete(clients: Clients, cluster_id: str) -> list[str]:
    """Delete the cluster's groups; return those that are still in use."""
    in_use = []
    for group in _groups(clients, cluster_id):
        group_id = str(group["GroupId"])
        with translate_errors(f"deleting {group_id} (ec2:DeleteSecurityGroup)"):
            try:
                clients.read("ec2").delete_security_group(GroupId=group_id)
            except ClientError as error:
                if error_code(error) == "DependencyViolation":
                    in_use.append(group_id)
                elif error_code(error) != "InvalidGroup.NotFound":
                    raise
    return in_use


def _allow(clients: Clients, security_group_id: str, permission: dict[str, Any], what: str) -> None:
    with translate_errors(f"allowing {what} (ec2:AuthorizeSecurityGroupIngress)"):
        try:
            clients.read("ec2").authorize_security_group_ingress(
                GroupId=security_group_id, IpPermissions=[permission]
            )
        except ClientError as error:
            if error_code(error) != "InvalidPermission.Duplicate":
                raise


def _groups(clients: Clients, cluster_id: str) -> list[dict[str, Any]]:
    with translate_errors("listing security groups (ec2:DescribeSecurityGroups)"):
        answer = clients.read("ec2").describe_security_groups(Filters=of_cluster(cluster_id))
    found: list[dict[str, Any]] = answer["SecurityGroups"]
    return found


def _group_name(cluster_id: str) -> str:
    return f"dlcloud-{cluster_id}"
