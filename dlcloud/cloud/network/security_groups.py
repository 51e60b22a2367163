"""Network access to a cluster: its security group, and the caller's own address."""

import ipaddress
import urllib.request
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import LATE_PAUSES_S, error_code, translate_errors
from dlcloud.cloud.compute.requests import cluster_filter, tag_specification
from dlcloud.model.cluster import CLUSTER_TAG
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import SSH_PORT

CHECK_URL = "https://checkip.amazonaws.com"
NO_GROUP = "InvalidGroup.NotFound"
DESCRIPTION = "dlcloud"
"""The description of every rule that dlcloud makes."""
NAMED = "dlcloud --cidr"
"""The description of a rule for a network that the user has named."""


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


class Ec2Network:
    """The security groups of clusters in one region."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def create_group(self, cluster_id: str, tags: Mapping[str, str], *, vpc_id: str = "") -> str:
        """Create the cluster's security group, by default in the default VPC, or find it."""
        group_id, place = "", {"VpcId": vpc_id} if vpc_id else {}
        with translate_errors(
            "creating the security group (ec2:CreateSecurityGroup)", ignore={"InvalidGroup.Duplicate"}
        ):
            answer = self._clients.get("ec2").create_security_group(
                GroupName=_group_name(cluster_id),
                Description="SSH from where dlcloud runs",
                TagSpecifications=[tag_specification("security-group", tags)],
                **place,
            )
            group_id = str(answer["GroupId"])
        if group_id:
            return group_id
        name = _group_name(cluster_id)
        for group in self._existing_group(name):
            tags_of_group = {tag["Key"]: tag["Value"] for tag in group.get("Tags") or ()}
            if tags_of_group.get(CLUSTER_TAG) == cluster_id:
                return str(group["GroupId"])
        raise CloudError(
            f"security group {name} exists without dlcloud's tags",
            f"aws ec2 delete-security-group --group-name {name}",
        )

    def find_group(self, cluster_id: str) -> str:
        """Return the id of the cluster's security group.

        Raises:
            CloudError: There is none.
        """
        name = _group_name(cluster_id)
        for group in self._existing_group(name):
            if {"Key": CLUSTER_TAG, "Value": cluster_id} in (group.get("Tags") or ()):
                return str(group["GroupId"])
        raise CloudError(
            f"the security group {name} is gone", "dlcloud gc removes what is left of the cluster"
        )

    def allow_ssh(self, security_group_id: str, cidr: str, *, named: bool = False) -> None:
        """Allow a network to reach port 22; no error if it already may.

        A network that the user has `named` stays when the address of this machine changes.
        """
        self._allow(security_group_id, _ssh_permission(cidr, NAMED if named else DESCRIPTION), "SSH")

    def move_ssh(self, cluster_id: str, cidr: str) -> list[str] | None:
        """Allow SSH from a network in place of the single addresses that dlcloud looked up.

        Returns:
            The addresses that are no longer allowed; None if the network was allowed already.
        """
        replaced = None
        for group in self._groups(cluster_id):
            looked_up = _ssh_networks(group, DESCRIPTION)
            if any(_covers(network, cidr) for network in (*looked_up, *_ssh_networks(group, NAMED))):
                continue
            self.allow_ssh(group["GroupId"], cidr)
            replaced = [network for network in looked_up if ipaddress.ip_network(network).num_addresses == 1]
            for network in replaced:
                with translate_errors(
                    f"ending access over SSH from {network} (ec2:RevokeSecurityGroupIngress)",
                    ignore={"InvalidPermission.NotFound", NO_GROUP},
                ):
                    self._clients.get("ec2").revoke_security_group_ingress(
                        GroupId=group["GroupId"], IpPermissions=[_ssh_permission(network)]
                    )
        return replaced

    def allow_peers(self, security_group_id: str) -> None:
        """Allow the instances of a group to reach each other over TCP; no error if they already may."""
        peers = [{"GroupId": security_group_id, "Description": DESCRIPTION}]
        permission = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": peers}
        self._allow(security_group_id, permission, "instances to reach each other")

    def allow_fabric(self, security_group_id: str) -> None:
        """Allow all traffic inside a group, both ways.

        Source: EC2 user guide, "Get started with EFA and MPI": Step 1, the EFA-enabled security group.
        """
        peers = [{"GroupId": security_group_id, "Description": DESCRIPTION}]
        permission = {"IpProtocol": "-1", "UserIdGroupPairs": peers}
        self._allow(security_group_id, permission, "EFA traffic between instances")
        with translate_errors(
            "allowing EFA traffic (ec2:AuthorizeSecurityGroupEgress)", ignore={"InvalidPermission.Duplicate"}
        ):
            self._clients.call_until_visible(
                "authorize_security_group_egress", GroupId=security_group_id, IpPermissions=[permission]
            )

    def revoke_ssh(self, cluster_id: str) -> list[str]:
        """Remove every ingress rule of the cluster's groups; return the groups that EC2 lists."""
        groups = self._groups(cluster_id)
        for group in groups:
            if not group["IpPermissions"]:
                continue
            with translate_errors(
                "ending access over SSH (ec2:RevokeSecurityGroupIngress)",
                ignore={"InvalidPermission.NotFound", NO_GROUP},
            ):
                self._clients.get("ec2").revoke_security_group_ingress(
                    GroupId=group["GroupId"], IpPermissions=group["IpPermissions"]
                )
        return [str(group["GroupId"]) for group in groups]

    def delete_groups(self, cluster_id: str) -> list[str]:
        """Delete the cluster's groups; return those that are still in use."""
        in_use = []
        for group in self._groups(cluster_id):
            group_id = str(group["GroupId"])
            with translate_errors(f"deleting {group_id} (ec2:DeleteSecurityGroup)", ignore={NO_GROUP}):
                try:
                    self._clients.get("ec2").delete_security_group(GroupId=group_id)
                except ClientError as error:
                    if error_code(error) != "DependencyViolation":
                        raise
                    in_use.append(group_id)
        return in_use

    def _allow(self, security_group_id: str, permission: dict[str, Any], purpose: str) -> None:
        with translate_errors(
            f"allowing {purpose} (ec2:AuthorizeSecurityGroupIngress)", ignore={"InvalidPermission.Duplicate"}
        ):
            self._clients.call_until_visible(
                "authorize_security_group_ingress", GroupId=security_group_id, IpPermissions=[permission]
            )

    def _groups(self, cluster_id: str) -> list[dict[str, Any]]:
        with translate_errors("listing security groups (ec2:DescribeSecurityGroups)"):
            return self._clients.pages(
                "ec2", "describe_security_groups", "SecurityGroups", Filters=cluster_filter(cluster_id)
            )

    def _existing_group(self, name: str) -> list[dict[str, Any]]:
        """Return the groups of a name that exists; a new one may be listed only some seconds later."""
        with translate_errors("finding the security group (ec2:DescribeSecurityGroups)"):
            for seconds in (*LATE_PAUSES_S, 0.0):
                answer = self._clients.get("ec2").describe_security_groups(
                    Filters=[{"Name": "group-name", "Values": [name]}]
                )
                if answer["SecurityGroups"]:
                    break
                self._clients.pause(seconds)
        return list(answer["SecurityGroups"])


def _ssh_permission(cidr: str, description: str = DESCRIPTION) -> dict[str, Any]:
    version, key = ("Ipv6Ranges", "CidrIpv6") if ":" in cidr else ("IpRanges", "CidrIp")
    network = {key: cidr, "Description": description}
    return {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT, version: [network]}


def _ssh_networks(group: Mapping[str, Any], description: str) -> list[str]:
    """Return the networks that rules of dlcloud's with this description allow to reach port 22."""
    return [
        network.get("CidrIp") or network["CidrIpv6"]
        for permission in group["IpPermissions"]
        if permission.get("FromPort") == SSH_PORT
        for network in (*permission.get("IpRanges", ()), *permission.get("Ipv6Ranges", ()))
        if network.get("Description") == description
    ]


def _covers(network: str, cidr: str) -> bool:
    outer, inner = ipaddress.ip_network(network), ipaddress.ip_network(cidr)
    return (
        outer.version == inner.version
        and int(outer.network_address) <= int(inner.network_address)
        and int(outer.broadcast_address) >= int(inner.broadcast_address)
    )


def _group_name(cluster_id: str) -> str:
    return f"dlcloud-{cluster_id}"
