"""Network access to a cluster: its security group, and the caller's own address."""

import ipaddress
import urllib.request
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translate_errors
from dlcloud.cloud.requests import cluster_filter, tag_specification
from dlcloud.core.errors import CloudError
from dlcloud.core.instance import SSH_PORT

CHECK_URL = "https://checkip.amazonaws.com"
NO_GROUP = "InvalidGroup.NotFound"


def own_cidr() -> str:
    """Return the caller's public address as a network of one.

    Raises:
        CloudError: The address cannot be looked up, or the answer is not an address.
    """
    hint = "pass it: --cidr 203.0.113.7/32"
    try:
        with urllib.request.urlopen(CHECK_URL, timeout=10) as answer:
            text = answer.read(64).decode("ascii", "replace").strip()
        return str(ipaddress.ip_network(text))
    except OSError as error:
        raise CloudError(f"cannot look up this machine's public address ({error})", hint) from error
    except ValueError as error:
        raise CloudError(f"{CHECK_URL} answered {text!r}, which is not an address", hint) from error


def create_group(clients: Clients, cluster_id: str, tags: Mapping[str, str]) -> str:
    """Create the cluster's security group in the default VPC, or find it."""
    group_id = ""
    with translate_errors(
        "creating the security group (ec2:CreateSecurityGroup)", ignore={"InvalidGroup.Duplicate"}
    ):
        answer = clients.get("ec2").create_security_group(
            GroupName=_group_name(cluster_id),
            Description="SSH from where dlcloud runs",
            TagSpecifications=[tag_specification("security-group", tags)],
        )
        group_id = str(answer["GroupId"])
    if group_id:
        return group_id
    for group in _groups(clients, cluster_id):
        return str(group["GroupId"])
    name = _group_name(cluster_id)
    raise CloudError(
        f"security group {name} exists without dlcloud's tags",
        f"aws ec2 delete-security-group --group-name {name}",
    )


def allow_ssh(clients: Clients, security_group_id: str, cidr: str) -> None:
    version, key = ("Ipv6Ranges", "CidrIpv6") if ":" in cidr else ("IpRanges", "CidrIp")
    permission = {
        "IpProtocol": "tcp",
        "FromPort": SSH_PORT,
        "ToPort": SSH_PORT,
        version: [{key: cidr, "Description": "dlcloud"}],
    }
    _allow(clients, security_group_id, permission, "SSH")


def allow_peers(clients: Clients, security_group_id: str) -> None:
    peers = [{"GroupId": security_group_id, "Description": "dlcloud"}]
    permission = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": peers}
    _allow(clients, security_group_id, permission, "instances to reach each other")


def revoke_access(clients: Clients, cluster_id: str) -> None:
    """Remove every ingress rule of the cluster's groups."""
    for group in _groups(clients, cluster_id):
        if not group["IpPermissions"]:
            continue
        with translate_errors(
            "ending access over SSH (ec2:RevokeSecurityGroupIngress)",
            ignore={"InvalidPermission.NotFound", NO_GROUP},
        ):
            clients.get("ec2").revoke_security_group_ingress(
                GroupId=group["GroupId"], IpPermissions=group["IpPermissions"]
            )


def delete_groups(clients: Clients, cluster_id: str) -> list[str]:
    """Delete the cluster's groups; return those that are still in use."""
    in_use = []
    for group in _groups(clients, cluster_id):
        group_id = str(group["GroupId"])
        with translate_errors(f"deleting {group_id} (ec2:DeleteSecurityGroup)", ignore={NO_GROUP}):
            try:
                clients.get("ec2").delete_security_group(GroupId=group_id)
            except ClientError as error:
                if error_code(error) != "DependencyViolation":
                    raise
                in_use.append(group_id)
    return in_use


def _allow(clients: Clients, security_group_id: str, permission: dict[str, Any], purpose: str) -> None:
    with translate_errors(
        f"allowing {purpose} (ec2:AuthorizeSecurityGroupIngress)", ignore={"InvalidPermission.Duplicate"}
    ):
        clients.get("ec2").authorize_security_group_ingress(
            GroupId=security_group_id, IpPermissions=[permission]
        )


def _groups(clients: Clients, cluster_id: str) -> list[dict[str, Any]]:
    with translate_errors("listing security groups (ec2:DescribeSecurityGroups)"):
        answer = clients.get("ec2").describe_security_groups(Filters=cluster_filter(cluster_id))
    return list(answer["SecurityGroups"])


def _group_name(cluster_id: str) -> str:
    return f"dlcloud-{cluster_id}"
