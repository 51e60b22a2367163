"""The local EC2's network: the default VPC and its subnets, as a launch and as preflight meet them."""

from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.compute.requests import run_instances_arguments, template_data
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Image
from dlcloud.planning.networks import PlannedNetwork, refuse_network
from tests.fakes.clock import FakeClock
from tests.fakes.local_ec2 import UBUNTU
from tests.fakes.samples import request
from tests.unit.cloud.test_images import AnswerMemory

A = "us-east-1a"
IMAGE = Image(image_id=UBUNTU, name="Ubuntu", root_device="/dev/sda1")


def account(rig, region="us-east-1"):
    """Return the account as dlcloud sees it."""
    clock = FakeClock(datetime.now(UTC))
    return Ec2Account(clients=rig.clients(region), catalog=Catalog(), cache=AnswerMemory(), clock=clock)


def subnets_of(rig):
    found = rig.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    return {subnet["AvailabilityZone"]: subnet for subnet in found}


@pytest.fixture
def private(rig):
    """Let the default subnet of a zone assign no public addresses."""
    subnet_id = subnets_of(rig)[A]["SubnetId"]
    rig.ec2.modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch={"Value": False})
    yield subnet_id
    rig.ec2.modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch={"Value": True})


@pytest.fixture
def group(rig):
    made = rig.ec2.create_security_group(GroupName="some", Description="some")["GroupId"]
    yield made
    rig.ec2.delete_security_group(GroupId=made)


def launch(group, **other):
    return request(zone=A, image=IMAGE, instance_type="c7i.large", security_group_id=group, **other)


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("asked", [False, True])
def test_an_address_is_given_where_the_launch_asks_for_it(rig, group, asked):
    arguments = run_instances_arguments(
        launch(group, network=PlannedNetwork(public_ip=asked), client_token=f"asked {asked}")
    )
    (instance,) = rig.ec2.run_instances(**arguments)["Instances"]
    shown = rig.await_state(instance["InstanceId"], "running")
    assert ("PublicIpAddress" in shown) is asked
    assert shown["PrivateIpAddress"]
    assert [each["GroupId"] for each in shown["SecurityGroups"]] == [group]
    rig.end(instance["InstanceId"])


@pytest.mark.usefixtures("private")
def test_a_fleet_gives_addresses_by_its_template(rig, group):
    data = template_data(launch(group, network=PlannedNetwork(public_ip=True)), "")
    fleet = rig.fleet(data, [{"InstanceType": "c7i.large", "AvailabilityZone": A}])
    (instance_id,) = fleet["Instances"][0]["InstanceIds"]
    assert rig.await_state(instance_id, "running")["PublicIpAddress"]
    rig.end(instance_id)


def test_groups_beside_a_network_interface_are_refused(rig, group):
    card = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        rig.run(NetworkInterfaces=[card], SecurityGroupIds=[group])


def test_a_subnet_without_addresses_is_known_until_it_assigns_them(rig, private):
    there = account(rig)
    assert [zone for zone, subnet in there.subnets().items() if not subnet.assigns_addresses] == [A]
    rig.ec2.modify_subnet_attribute(SubnetId=private, MapPublicIpOnLaunch={"Value": True})
    assert all(subnet.assigns_addresses for subnet in there.subnets().values())
    calls = rig.control.calls()["DescribeSubnets"]
    assert there.subnets()[A] == account(rig).subnets()[A]
    assert rig.control.calls()["DescribeSubnets"] == calls + 1, "fit subnets are remembered"


def test_a_subnet_with_a_table_of_its_own_reaches_no_internet(rig):
    subnet = subnets_of(rig)[A]
    table = rig.ec2.create_route_table(VpcId=subnet["VpcId"])["RouteTable"]["RouteTableId"]
    link = rig.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])["AssociationId"]
    found = account(rig).subnets()
    assert [zone for zone, subnet in found.items() if not subnet.reaches_internet] == [A]
    rig.control.add_fault("DescribeRouteTables", "UnauthorizedOperation", times=1, status=403)
    assert all(subnet.reaches_internet for subnet in account(rig).subnets().values())
    rig.ec2.disassociate_route_table(AssociationId=link)
    rig.ec2.delete_route_table(RouteTableId=table)


def test_without_a_default_vpc_launches_and_groups_are_refused(rig):
    ec2 = rig.client("ec2", region="eu-west-1")
    found = ec2.describe_subnets()["Subnets"]
    for subnet in found:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=found[0]["VpcId"])
    with pytest.raises(ClientError, match="VPCIdNotSpecified"):
        ec2.create_security_group(GroupName="some", Description="some")
    with pytest.raises(ClientError, match="VPCIdNotSpecified"):
        ec2.run_instances(ImageId=UBUNTU, InstanceType="c7i.large", MinCount=1, MaxCount=1)
    there = account(rig, "eu-west-1")
    assert there.subnets() == {}
    ec2.create_default_vpc()
    assert all(subnet.reaches_internet for subnet in there.subnets().values())


def test_vpc_block_public_access_closes_the_gateways_except_of_excluded_vpcs(rig):
    found = subnets_of(rig)
    try:
        for mode in ("block-bidirectional", "block-ingress"):
            rig.ec2.modify_vpc_block_public_access_options(InternetGatewayBlockMode=mode)
            blocked = account(rig).subnets(fresh=True)
            assert all(one.is_blocked and not one.reaches_internet for one in blocked.values())
            with pytest.raises(CloudError, match="VPC Block Public Access") as caught:
                refuse_network("us-east-1", blocked)
            assert "create-vpc-block-public-access-exclusion" in caught.value.hint
        rig.control.add_fault(
            "DescribeVpcBlockPublicAccessOptions", "UnauthorizedOperation", times=1, status=403
        )
        assert all(one.reaches_internet for one in account(rig).subnets(fresh=True).values())
        rig.ec2.create_vpc_block_public_access_exclusion(
            SubnetId=found[A]["SubnetId"], InternetGatewayExclusionMode="allow-bidirectional"
        )
        opened = account(rig).subnets(fresh=True)
        assert [zone for zone, one in opened.items() if one.reaches_internet] == [A]
    finally:
        rig.ec2.modify_vpc_block_public_access_options(InternetGatewayBlockMode="off")
