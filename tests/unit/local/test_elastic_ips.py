"""Elastic IPs of the local EC2: allocated, associated, reached over SSH, moved, and free after an end."""

import pytest
from botocore.exceptions import ClientError

from tests.fakes.local_ec2 import wait_for


def refused(code):
    return pytest.raises(ClientError, match=code)


@pytest.fixture
def address(rig):
    """An address that the test may leave associated."""
    made = rig.ec2.allocate_address(Domain="vpc")
    yield made
    shown = describe(rig, made)
    if "AssociationId" in shown:
        rig.ec2.disassociate_address(AssociationId=shown["AssociationId"])
    rig.ec2.release_address(AllocationId=made["AllocationId"])
    with refused("InvalidAllocationID.NotFound"):
        describe(rig, made)


def describe(rig, address):
    (shown,) = rig.ec2.describe_addresses(AllocationIds=[address["AllocationId"]])["Addresses"]
    return shown


def associate(rig, address, instance, **options):
    names = {"AllocationId": address["AllocationId"], "InstanceId": instance["InstanceId"]}
    return rig.ec2.associate_address(**names, **options)["AssociationId"]


def on_elastic(rig, instance, command):
    """Run a command over SSH at the public address that EC2 shows now."""
    return rig.on(rig.describe(instance["InstanceId"]), command)[1]


def test_an_instance_is_reached_at_its_elastic_ip_also_after_a_stop(rig, address):
    instance = rig.up()
    name, own = instance["InstanceId"], instance["PublicIpAddress"]
    associate(rig, address, instance)
    assert describe(rig, address)["InstanceId"] == name
    assert rig.describe(name)["PublicIpAddress"] == address["PublicIp"] != own
    assert on_elastic(rig, instance, "echo there") == "there\n"
    rig.ec2.stop_instances(InstanceIds=[name])
    assert rig.await_state(name, "stopped")["PublicIpAddress"] == address["PublicIp"]
    rig.ec2.start_instances(InstanceIds=[name])
    rig.await_state(name, "running")
    assert on_elastic(rig, instance, "echo again") == "again\n"
    with refused("InvalidIPAddress.InUse"):
        rig.ec2.release_address(AllocationId=address["AllocationId"])
    rig.ec2.terminate_instances(InstanceIds=[name])
    wait_for(lambda: "InstanceId" not in describe(rig, address), "the end frees the address")


def test_an_elastic_ip_moves_and_gives_the_own_address_back(rig, address):
    first, second = (rig.describe(name) for name in rig.run(2))
    for instance in (first, second):
        rig.await_state(instance["InstanceId"], "running")
    associate(rig, address, first)
    with refused("Resource.AlreadyAssociated"):
        associate(rig, address, second, AllowReassociation=False)
    association = associate(rig, address, second, AllowReassociation=True)
    assert rig.describe(first["InstanceId"])["PublicIpAddress"] == first["PublicIpAddress"]
    assert on_elastic(rig, second, "echo moved") == "moved\n"
    rig.ec2.disassociate_address(AssociationId=association)
    assert rig.describe(second["InstanceId"])["PublicIpAddress"] == second["PublicIpAddress"]
    assert on_elastic(rig, second, "echo own") == "own\n"


def test_an_address_is_associated_by_a_network_interface(rig, address):
    instance = rig.up()
    interface = instance["NetworkInterfaces"][0]["NetworkInterfaceId"]
    rig.ec2.associate_address(PublicIp=address["PublicIp"], NetworkInterfaceId=interface)
    shown = describe(rig, address)
    assert (shown["InstanceId"], shown["NetworkInterfaceId"]) == (instance["InstanceId"], interface)
    assert on_elastic(rig, instance, "echo there") == "there\n"


def test_a_region_has_five_addresses(rig):
    made = [rig.ec2.allocate_address()["AllocationId"] for _ in range(5)]
    with refused("AddressLimitExceeded"):
        rig.ec2.allocate_address()
    for name in made:
        rig.ec2.release_address(AllocationId=name)


def test_a_second_interface_is_free_after_its_instances_end(rig):
    instance = rig.up()
    name = instance["InstanceId"]
    made = rig.ec2.create_network_interface(SubnetId=instance["SubnetId"])["NetworkInterface"]
    second = made["NetworkInterfaceId"]
    rig.ec2.attach_network_interface(NetworkInterfaceId=second, InstanceId=name, DeviceIndex=1)
    rig.ec2.terminate_instances(InstanceIds=[name])
    rig.await_state(name, "terminated")
    (shown,) = rig.ec2.describe_network_interfaces(NetworkInterfaceIds=[second])["NetworkInterfaces"]
    assert (shown["Status"], shown.get("Attachment")) == ("available", None)
    rig.ec2.delete_network_interface(NetworkInterfaceId=second)
