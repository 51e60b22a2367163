"""The local EC2's network: subnets, security groups, fabric adapters, and tunnels to private subnets."""

import socket
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from types import SimpleNamespace

import pytest

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.compute.requests import run_instances_arguments, template_data
from dlcloud.cloud.network.tunnels import EndpointTunnels
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.instance.addresses import GuardedListener, Sources, ssh_sources
from dlcloud.model.errors import CloudError, UnreachableError
from dlcloud.model.instance import Image, NetworkCard
from dlcloud.planning.launch_request import NetworkInterface
from dlcloud.planning.networks import PlannedNetwork, refuse_network
from dlcloud.planning.placement import fabric_interfaces
from dlcloud.recipe.network import Network
from tests.fakes.clock import FakeClock
from tests.fakes.local_ec2 import UBUNTU, WAIT_S, refusal, refused
from tests.fakes.samples import RECIPE, hardware, recipe, request
from tests.unit.cloud.test_images import AnswerMemory
from tests.unit.local.test_instance_roles import cloud_of

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
def test_an_address_is_given_where_the_launch_or_the_template_asks_for_it(rig, group):
    for asked in (False, True):
        wanted = launch(group, network=PlannedNetwork(public_ip=asked), client_token=f"asked {asked}")
        (instance,) = rig.ec2.run_instances(**run_instances_arguments(wanted))["Instances"]
        shown = rig.await_state(instance["InstanceId"], "running")
        assert ("PublicIpAddress" in shown) is asked
        assert shown["PrivateIpAddress"]
        assert [one["GroupId"] for one in shown["SecurityGroups"]] == [group]
        rig.end(instance["InstanceId"])
    fleet = rig.fleet(template_data(wanted, ""), [{"InstanceType": "c7i.large", "AvailabilityZone": A}])
    (instance_id,) = fleet["Instances"][0]["InstanceIds"]
    assert rig.await_state(instance_id, "running")["PublicIpAddress"]
    rig.end(instance_id)
    card = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
    with refused("InvalidParameterCombination"):
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
    with refused("VPCIdNotSpecified"):
        ec2.create_security_group(GroupName="some", Description="some")
    with refused("VPCIdNotSpecified"):
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


INSTANCES = recipe(RECIPE.replace("instances:", "instances:\n  efa: true")).instances


@pytest.fixture(scope="module")
def efa_types(rig):
    """Every type with EFA, as EC2 describes it."""
    offered = cloud_of(rig.clients()).types.offered()
    return {entry.name: entry for entry in offered if entry.efa_interfaces}


ARM = "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id"


def answer(rig, name, interfaces, *, public=None):
    """Return the code of EC2's answer to the dry run of a launch with these interfaces."""
    network = PlannedNetwork(public_ip=public)
    cards = tuple(interfaces)
    wanted = request(instance_type=name, interfaces=cards, security_group_id="", network=network)
    arguments = run_instances_arguments(wanted)
    (entry,) = rig.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    is_arm = "arm64" in entry["ProcessorInfo"]["SupportedArchitectures"]
    image = rig.client("ssm").get_parameter(Name=ARM)["Parameter"]["Value"] if is_arm else UBUNTU
    del arguments["ClientToken"]
    return refusal(rig.ec2.run_instances, DryRun=True, **{**arguments, "ImageId": image})


def test_ec2_takes_the_interfaces_of_every_type_with_several_cards(rig, efa_types):
    several = {name: entry for name, entry in efa_types.items() if len(entry.network_cards) > 1}
    assert {"p4d.24xlarge", "p5.48xlarge", "p6-b300.48xlarge", "hpc6id.32xlarge"} <= several.keys()
    for name, entry in several.items():
        interfaces, notes = fabric_interfaces(INSTANCES, [name], several, is_public=False)
        assert sum(one.is_efa for one in interfaces) == entry.efa_interfaces, name
        assert notes == []
        assert answer(rig, name, interfaces) == "DryRunOperation", name
    both = ["p5.48xlarge", "p6-b300.48xlarge"]  # of one fleet: the cards that all have
    interfaces, _ = fabric_interfaces(INSTANCES, both, efa_types, is_public=False)
    assert interfaces[0].kind == "interface", "the first card of a p6-b300 takes no EFA"
    assert [one.card for one in interfaces] == list(range(17))


def test_with_a_public_address_there_is_one_interface(rig, efa_types):
    for name in ("p4d.24xlarge", "p5.48xlarge", "c7i.48xlarge"):
        interfaces, _ = fabric_interfaces(INSTANCES, [name], efa_types, is_public=True)
        assert [one.kind for one in interfaces] == ["efa"]
        assert answer(rig, name, interfaces, public=True) == "DryRunOperation"
    with pytest.raises(CloudError, match="no public address") as caught:
        fabric_interfaces(INSTANCES, ["p6-b300.48xlarge"], efa_types, is_public=True)
    assert "network.access" in caught.value.hint


def test_a_card_for_one_interface_has_an_efa_without_an_address():
    cards = [NetworkCard(index=index, takes_efa=True, interfaces=1 + (index + 1) % 2) for index in range(4)]
    gb200 = replace(hardware(), efa_interfaces=4, network_cards=tuple(cards))
    interfaces, _ = fabric_interfaces(INSTANCES, [gb200.name], {gb200.name: gb200}, is_public=False)
    assert [(one.device, one.kind) for one in interfaces] == [
        (0, "efa"),
        (0, "efa-only"),
        (1, "efa"),
        (0, "efa-only"),
    ]


@pytest.mark.parametrize(
    ("name", "interfaces", "code"),
    [
        ("p6-b300.48xlarge", [(0, 0, "efa")], "InvalidParameterCombination"),
        ("p6-b300.48xlarge", [(0, 0, "interface"), (17, 1, "efa")], "InvalidParameterValue"),
        ("hpc6id.32xlarge", [(0, 0, "efa"), (1, 1, "efa")], "AttachmentLimitExceeded"),
        ("p5.48xlarge", [(0, 0, "efa-only")], "InvalidParameterCombination"),
        ("c7i.large", [(0, 0, "efa")], "InvalidParameterCombination"),
        ("c7i.48xlarge", [(0, 0, "efa"), (1, 1, "efa")], "AttachmentLimitExceeded"),
    ],
)
def test_ec2_refuses_what_a_network_card_does_not_take(rig, name, interfaces, code):
    made = [NetworkInterface(card=card, device=device, kind=kind) for card, device, kind in interfaces]
    assert answer(rig, name, made) == code


def test_ec2_refuses_a_public_address_next_to_several_interfaces(rig):
    first = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "InterfaceType": "efa"}
    cards = [first, {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa"}]
    with refused("InvalidParameterCombination", ".*one network interface only"):
        rig.run(InstanceType="p4d.24xlarge", NetworkInterfaces=cards, DryRun=True)


BANNER = b"SSH-2.0-"


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


def test_a_tunnel_reaches_the_ssh_server_for_who_may_open_it(rig, instance, endpoint_id, monkeypatch):
    assert instance.get("PublicIpAddress") is None
    assert banner(rig, instance) == BANNER
    allowed = {"Effect": "Allow", "Action": ["ec2:Describe*"], "Resource": "*"}
    with pytest.raises(UnreachableError, match=f"OpenTunnel on resource: arn:.*/{endpoint_id}"):
        banner(rig, instance, rig.user(allowed))
    opens = {**allowed, "Action": "ec2-instance-connect:OpenTunnel"}
    assert banner(rig, instance, rig.user(allowed, opens)) == BANNER
    signed = EndpointTunnels._signed_url
    monkeypatch.setattr(EndpointTunnels, "_signed_url", lambda *a: f"{signed(*a)[:-1]}x")
    with pytest.raises(UnreachableError, match=r"HTTP 403.*the signature is wrong"):
        banner(rig, instance)


def test_a_vpc_has_one_endpoint_and_another_vpc_none(rig, subnet, endpoint_id):
    with refused(".*LimitExceeded"):
        rig.ec2.create_instance_connect_endpoint(SubnetId=subnet["SubnetId"])
    filters = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    (shown,) = rig.ec2.describe_instance_connect_endpoints(Filters=filters)["InstanceConnectEndpoints"]
    assert (shown["InstanceConnectEndpointId"], shown["State"]) == (endpoint_id, "create-complete")
    with refused(".*NotFound"):
        rig.ec2.delete_instance_connect_endpoint(InstanceConnectEndpointId="eice-0000000000000000a")
    other = rig.up()
    with pytest.raises(CloudError, match="has no EC2 Instance Connect Endpoint"):
        banner(rig, other)
    rig.end(other["InstanceId"])


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
    for missing, message in (
        ({"subnets": ["tag:Name=missing"]}, "there is no subnet tag:Name=missing"),
        ({"vpc": "vpc-0123"}, "vpc-0123 names no VPC"),
        ({"security_groups": ["sg-0123"]}, "there is no security group sg-0123 in vpc-"),
    ):
        with pytest.raises(CloudError, match=message):
            account(rig).network(Network(**missing))


OWN = {"CidrIp": "127.0.0.1/32"}


def rule(protocol="tcp", first=22, last=22, **other):
    empty = {"cidr_ipv4": None, "source_group": {}}
    return SimpleNamespace(ip_protocol=protocol, from_port=first, to_port=last, **{**empty, **other})


@pytest.mark.parametrize(
    ("rules", "networks", "instances"),
    [
        ([], (), False),
        ([rule(cidr_ipv4="192.0.2.0/24")], ("192.0.2.0/24",), False),
        ([rule("-1", None, None, cidr_ipv4="0.0.0.0/0")], ("0.0.0.0/0",), False),
        ([rule(first=0, last=65535, source_group={"GroupId": "sg-1"})], (), True),
        ([rule(first=23, last=99, cidr_ipv4="0.0.0.0/0"), rule("udp", cidr_ipv4="0.0.0.0/0")], (), False),
    ],
)
def test_rules_admit_networks_and_groups_to_port_22(rules, networks, instances):
    groups = [SimpleNamespace(ingress_rules=rules), SimpleNamespace(ingress_rules=[])]
    expected = Sources(networks=tuple(map(IPv4Network, networks)), instances=instances)
    assert ssh_sources(groups) == expected


def source(network, *, instances=False):
    return Sources(networks=(IPv4Network(network),), instances=instances)


@pytest.fixture(params=["dropped", "held"])
def listener(request, monkeypatch):
    """Where the kernel cannot drop packets, connections are made, and never answered."""
    if request.param == "held":
        monkeypatch.setattr("dlcloud.local.instance.addresses.sys.platform", "darwin")
    with GuardedListener(range(0)) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        listener.listen(5)
        yield listener


def accepts(listener):
    """True if a new connection gets through; a dropped one is given up soon."""
    with socket.socket() as caller:
        caller.settimeout(0.1)
        try:
            caller.connect(listener.getsockname())
            listener.accept()[0].close()
        except (TimeoutError, BlockingIOError):
            return False
        return True


def test_a_listener_admits_what_rules_cover_from_then_on(listener):
    assert not accepts(listener)
    listener.admit(source("192.0.2.0/24"))
    assert not accepts(listener)
    listener.admit(source("192.0.2.0/24", instances=True))
    assert not accepts(listener), "the caller's user is not one of an instance's"
    listener.admit(source("127.0.0.0/24"))
    assert accepts(listener)
    with socket.create_connection(listener.getsockname()) as caller:
        connection, _ = listener.accept()
        listener.admit(Sources())
        assert not accepts(listener)
        with connection:  # an open connection outlives its rule
            connection.settimeout(WAIT_S)
            caller.sendall(b"still here")
            assert connection.recv(10) == b"still here"


def is_dropped(rig, instance):
    """True if nothing answers at port 22."""
    entry = rig.entry(instance["InstanceId"])
    try:
        with socket.create_connection((entry["host"], entry["ssh_port"]), timeout=0.3) as connection:
            return connection.recv(1) is None
    except TimeoutError:
        return True


def test_ssh_times_out_until_a_rule_covers_the_caller(rig):
    group = rig.ec2.create_security_group(GroupName="guarded", Description="ssh")["GroupId"]
    instance = rig.up(SecurityGroupIds=[group])
    rules = {"GroupId": group, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    assert is_dropped(rig, instance)
    rig.ec2.authorize_security_group_ingress(**rules, CidrIp="192.0.2.1/32")
    assert is_dropped(rig, instance)
    rig.ec2.authorize_security_group_ingress(**rules, **OWN)
    with rig.ssh(instance) as client:
        rig.ec2.revoke_security_group_ingress(**rules, **OWN)
        assert is_dropped(rig, instance)
        assert client.exec_command("echo open")[1].read() == b"open\n"
    rig.ec2.authorize_security_group_ingress(**rules, CidrIp="0.0.0.0/0")
    assert rig.on(instance, "echo in")[1] == "in\n"
    rig.end(instance["InstanceId"])
    rig.ec2.delete_security_group(GroupId=group)


def test_instances_of_a_group_reach_each_other_where_the_caller_does_not(rig):
    if rig.endpoint.control.status()["isolation"]["level"] == "none":
        pytest.skip("instances' programs run as the caller here")
    group = rig.ec2.create_security_group(GroupName="peers", Description="peers")["GroupId"]
    rules = {"GroupId": group, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    rig.ec2.authorize_security_group_ingress(**rules, **OWN)
    peers = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": group}]}
    rig.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[peers])
    first, second = (rig.await_state(name, "running") for name in rig.run(2, SecurityGroupIds=[group]))
    with rig.ssh(first) as client:
        rig.ec2.revoke_security_group_ingress(**rules, **OWN)
        assert is_dropped(rig, second)
        entry = rig.entry(second["InstanceId"])
        command = f"exec 3<>/dev/tcp/{entry['host']}/{entry['ssh_port']}; head -c 3 <&3"
        assert client.exec_command(f"bash -c '{command}'")[1].read() == b"SSH"
    rig.end(first["InstanceId"], second["InstanceId"])
    rig.ec2.delete_security_group(GroupId=group)
