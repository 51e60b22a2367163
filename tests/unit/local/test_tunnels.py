"""Tunnels of EC2 Instance Connect Endpoints, and private subnets, on the local EC2."""

from contextlib import closing

import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.network.tunnels import EndpointTunnels
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError, UnreachableError
from dlcloud.recipe.network import Network
from tests.fakes.clock import FakeClock

BANNER = b"SSH-2.0-"


def account(rig):
    return Ec2Account(clients=rig.clients(), catalog=Catalog(), cache={}, clock=FakeClock())


@pytest.fixture(scope="module")
def subnet(rig):
    vpc_id = rig.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    place = {"VpcId": vpc_id, "AvailabilityZone": "us-east-1b"}
    subnet = rig.ec2.create_subnet(CidrBlock="10.9.1.0/24", **place)["Subnet"]
    filters = [{"Name": "vpc-id", "Values": [vpc_id]}]
    (group,) = rig.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "10.9.0.0/16"}]}
    rig.ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    tags = [{"Key": "Name", "Value": "private"}]
    rig.ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=tags)
    return subnet


@pytest.fixture(scope="module")
def endpoint_id(rig, subnet):
    made = rig.ec2.create_instance_connect_endpoint(SubnetId=subnet["SubnetId"])
    return made["InstanceConnectEndpoint"]["InstanceConnectEndpointId"]


@pytest.fixture(scope="module")
def instance(rig, subnet, endpoint_id):  # noqa: ARG001  it is reached through the endpoint
    return rig.up(SubnetId=subnet["SubnetId"])


def banner(rig, instance, key=None):
    port = next(int(tag["Value"]) for tag in instance["Tags"] if tag["Key"] == "dlcloud:ssh-port")
    tunnels = EndpointTunnels(rig.clients(key=key))
    with closing(tunnels.open(instance["InstanceId"], instance["PrivateIpAddress"], port, 60.0)) as stream:
        stream.settimeout(60.0)
        return stream.recv(8)


def test_a_tunnel_reaches_the_ssh_server(rig, instance):
    assert instance.get("PublicIpAddress") is None
    assert banner(rig, instance) == BANNER


def test_a_wrong_signature_opens_no_tunnel(rig, instance, monkeypatch):
    signed = EndpointTunnels._signed_url
    monkeypatch.setattr(EndpointTunnels, "_signed_url", lambda *a: f"{signed(*a)[:-1]}x")
    with pytest.raises(UnreachableError, match=r"HTTP 403.*the signature is wrong"):
        banner(rig, instance)


def test_a_tunnel_needs_its_permission(rig, instance, endpoint_id):
    allowed = {"Effect": "Allow", "Action": ["ec2:Describe*"], "Resource": "*"}
    with pytest.raises(UnreachableError, match=f"OpenTunnel on resource: arn:.*/{endpoint_id}"):
        banner(rig, instance, rig.user(allowed))
    opens = {**allowed, "Action": "ec2-instance-connect:OpenTunnel"}
    assert banner(rig, instance, rig.user(allowed, opens)) == BANNER


def test_an_instance_of_another_vpc_has_no_endpoint(rig, endpoint_id):
    assert endpoint_id
    other = rig.up()
    with pytest.raises(CloudError, match="has no EC2 Instance Connect Endpoint"):
        banner(rig, other)
    rig.ec2.terminate_instances(InstanceIds=[other["InstanceId"]])


def test_a_vpc_has_one_endpoint(rig, subnet, endpoint_id):
    with pytest.raises(ClientError, match="LimitExceeded"):
        rig.ec2.create_instance_connect_endpoint(SubnetId=subnet["SubnetId"])
    filters = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    (shown,) = rig.ec2.describe_instance_connect_endpoints(Filters=filters)["InstanceConnectEndpoints"]
    assert (shown["InstanceConnectEndpointId"], shown["State"]) == (endpoint_id, "create-complete")
    with pytest.raises(ClientError, match="NotFound"):
        rig.ec2.delete_instance_connect_endpoint(InstanceConnectEndpointId="eice-0000000000000000a")


def test_a_network_is_found_by_ids_and_tags(rig, subnet, endpoint_id):
    place = {"VpcId": subnet["VpcId"]}
    group = rig.ec2.create_security_group(GroupName="own", Description="own", **place)["GroupId"]
    private = {"access": "instance-connect-endpoint", "public_ip": False}
    found = account(rig).network(Network(subnets=["tag:Name=private"], security_groups=[group], **private))
    assert (found.vpc_id, found.groups, found.endpoints) == (subnet["VpcId"], (group,), (endpoint_id,))
    assert found.cidrs == ("10.9.0.0/16",)
    (found_subnet,) = found.subnets.values()
    assert found_subnet.subnet_id == subnet["SubnetId"]
    assert not found_subnet.reaches_internet
    assert not found_subnet.has_nat
    default = account(rig).network(Network())
    assert all(entry.reaches_internet for entry in default.subnets.values())


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"subnets": ["tag:Name=missing"]}, "there is no subnet tag:Name=missing"),
        ({"vpc": "vpc-0123"}, "vpc-0123 names no VPC"),
        ({"security_groups": ["sg-0123"]}, "there is no security group sg-0123 in vpc-"),
    ],
)
def test_what_is_missing_is_named(rig, network, message):
    with pytest.raises(CloudError, match=message):
        account(rig).network(Network(**network))
