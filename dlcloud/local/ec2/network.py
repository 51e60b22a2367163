"""The network of launches: the default VPC with its gateway, and who gets a public address."""

from collections.abc import Mapping, Sequence
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend

_EVERYWHERE = "0.0.0.0/0"


class NetworkedBackend(EC2Backend):
    """moto's EC2 of a region, whose default VPC has a route to the internet.

    Source: VPC user guide, "Default VPC components".
    """

    # moto looks for a backend's paths beside the module that its class was made in.
    __module__ = EC2Backend.__module__

    def create_default_vpc(self) -> Any:  # noqa: ANN401 - moto's object
        vpc = super().create_default_vpc()
        self.default_vpc = vpc
        gateway = self.create_internet_gateway()
        self.attach_internet_gateway(gateway.id, vpc.id)
        (table,) = self.describe_route_tables(filters={"vpc-id": vpc.id})
        self.create_route(table.id, _EVERYWHERE, gateway_id=gateway.id)
        return vpc


def check_network(backend: Any, request: Mapping[str, Any]) -> None:  # noqa: ANN401 - moto's object
    """Refuse a launch without a network, or with one that is stated twice.

    Args:
        backend: moto's EC2 of a region.
        request: NetworkInterfaces, SecurityGroupIds and SubnetId of the launch.

    Raises:
        EC2ClientError: With EC2's code and text.
    """
    cards = request.get("NetworkInterfaces") or ()
    for name, shown in (("SecurityGroupIds", "security groups"), ("SubnetId", "subnet ID")):
        if cards and request.get(name):
            message = (
                f"Network interfaces and an instance-level {shown} may not be specified on the same request"
            )
            raise EC2ClientError("InvalidParameterCombination", message)
    if not request.get("SubnetId") and not any(card.get("SubnetId") for card in cards):
        check_default_vpc(backend)


def check_default_vpc(backend: Any) -> None:  # noqa: ANN401 - moto's object
    """Refuse what needs a default VPC where there is none.

    Raises:
        EC2ClientError: VPCIdNotSpecified.
    """
    if backend.get_default_vpc() is None:
        raise EC2ClientError("VPCIdNotSpecified", "No default VPC for this user")


def has_public_address(instance: Any, cards: Sequence[Mapping[str, Any]]) -> bool:  # noqa: ANN401 - moto's object
    """True if the launch asks for a public address, or does not say and the subnet assigns one.

    Source: VPC user guide, "IP addressing for your VPCs and subnets": the launch overrides the subnet.
    """
    asked = next((card.get("AssociatePublicIpAddress") for card in cards), None)
    if asked is not None:
        return str(asked).lower() == "true"
    return str(instance.nics[0].subnet.map_public_ip_on_launch).lower() == "true"
