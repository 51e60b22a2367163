"""Port 22 of a local instance: security groups decide who reaches it, as on EC2."""

import socket
from ipaddress import IPv4Network
from types import SimpleNamespace

import pytest

from dlcloud.local.instance.addresses import GuardedListener, Sources, ssh_sources
from tests.fakes.local_ec2 import WAIT_S

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
