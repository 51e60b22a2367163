"""EC2 Instance Connect Endpoints: the actions that make, show and delete them. Importing this imports moto.

Source: EC2 API reference, CreateInstanceConnectEndpoint; EC2 user guide, "EC2 Instance Connect Endpoint".
"""

import secrets
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from dlcloud.local.ec2.image_responses import ImageResponses

MOST_IN_VPC = 1
"""Source: EC2 user guide, "Quotas for EC2 Instance Connect Endpoint"."""
_FILTERS = {
    "availability-zone": "AvailabilityZone",
    "instance-connect-endpoint-id": "InstanceConnectEndpointId",
    "owner-id": "OwnerId",
    "state": "State",
    "subnet-id": "SubnetId",
    "vpc-id": "VpcId",
}
_HOME = "dlcloud_connect_endpoints"


class ConnectEndpointResponses(ImageResponses):
    """The answers on endpoints; bound to one site by a subclass."""

    def create_instance_connect_endpoint(self) -> ActionResult:
        """Make the endpoint of a VPC in one of its subnets; it is ready at once."""
        subnet_id = str(self.params.get("SubnetId"))
        subnet = self.ec2_backend.get_subnet(subnet_id)
        endpoints = endpoints_of(self.current_account, self.region)
        if sum(entry["VpcId"] == subnet.vpc_id for entry in endpoints.values()) >= MOST_IN_VPC:
            message = f"You have reached the limit of {MOST_IN_VPC} endpoint(s) for VPC {subnet.vpc_id}."
            raise EC2ClientError("InstanceConnectEndpointLimitExceeded", message)
        self.error_on_dryrun()
        endpoint_id = f"eice-{secrets.token_hex(8)}1"
        groups = self.params.get("SecurityGroupIds") or [
            self.ec2_backend.get_security_group_from_name("default", subnet.vpc_id).id
        ]
        specified = self.params.get("TagSpecifications") or ()
        tags = [tag for entry in specified for tag in entry.get("Tags") or ()]
        endpoints[endpoint_id] = {
            "OwnerId": self.current_account,
            "InstanceConnectEndpointId": endpoint_id,
            "InstanceConnectEndpointArn": f"arn:{self.partition}:ec2:{self.region}:{self.current_account}"
            f":instance-connect-endpoint/{endpoint_id}",
            "State": "create-complete",
            "DnsName": f"{endpoint_id}.{secrets.token_hex(4)}.ec2-instance-connect-endpoint.{self.region}"
            ".amazonaws.com",
            "NetworkInterfaceIds": [],
            "VpcId": subnet.vpc_id,
            "AvailabilityZone": subnet.availability_zone,
            "CreatedAt": datetime.now(UTC),
            "SubnetId": subnet_id,
            "PreserveClientIp": str(self.params.get("PreserveClientIp")).lower() == "true",
            "SecurityGroupIds": groups,
            "Tags": tags,
        }
        return ActionResult({"InstanceConnectEndpoint": endpoints[endpoint_id]})

    def describe_instance_connect_endpoints(self) -> ActionResult:
        """Return the endpoints that pass every filter."""
        self.error_on_dryrun()
        endpoints = endpoints_of(self.current_account, self.region)
        ids = self.params.get("InstanceConnectEndpointIds") or []
        for endpoint_id in ids:
            _refuse_unknown(endpoints, endpoint_id)
        passes = self.condition(_FILTERS)
        shown = [entry for name, entry in endpoints.items() if not ids or name in ids]
        return ActionResult({"InstanceConnectEndpoints": [entry for entry in shown if passes(entry)]})

    def delete_instance_connect_endpoint(self) -> ActionResult:
        """Delete an endpoint at once."""
        endpoints = endpoints_of(self.current_account, self.region)
        endpoint_id = str(self.params.get("InstanceConnectEndpointId"))
        _refuse_unknown(endpoints, endpoint_id)
        self.error_on_dryrun()
        deleted = {**endpoints.pop(endpoint_id), "State": "delete-complete"}
        return ActionResult({"InstanceConnectEndpoint": deleted})


def endpoints_of(account: str, region: str) -> dict[str, dict[str, Any]]:
    """Return the endpoints of a region by id, with the members of EC2's answers."""
    backend = ec2_backends[account][region]
    endpoints: dict[str, dict[str, Any]] = vars(backend).setdefault(_HOME, {})
    return endpoints


def _refuse_unknown(endpoints: dict[str, dict[str, Any]], endpoint_id: str) -> None:
    if endpoint_id not in endpoints:
        message = f"The instance connect endpoint ID '{endpoint_id}' does not exist"
        raise EC2ClientError("InvalidInstanceConnectEndpointId.NotFound", message)
