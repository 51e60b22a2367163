"""The metadata service as ec2-metadata reads it, and the console output."""

import inspect
from functools import cached_property

import pytest
import urllib3

from tests.fakes.local_ec2 import wait_for

ec2_metadata = pytest.importorskip("ec2_metadata")


class Redirected(urllib3.PoolManager):
    """Reaches an instance's own metadata service where the client names the link-local address."""

    def __init__(self, entry):
        super().__init__(retries=False)
        self.address = f"{entry['host']}:{entry['metadata_port']}"

    def request(self, method, url, *arguments, **options):
        return super().request(method, url.replace("169.254.169.254", self.address), *arguments, **options)


def reader(rig, instance):
    return ec2_metadata.EC2Metadata(Redirected(rig.entry(instance["InstanceId"])))


@pytest.fixture(scope="module")
def instance(rig):
    rig.ec2.import_key_pair(KeyName="metadata", PublicKeyMaterial=rig.public_key.encode())
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "read"}]}]
    more = "runcmd:\n  - echo from the boot\n"
    return rig.up(
        KeyName="metadata",
        UserData=rig.user_data(more),
        MetadataOptions={"InstanceMetadataTags": "enabled"},
        TagSpecifications=tags,
    )


def test_every_property_can_be_read(rig, instance):
    metadata = reader(rig, instance)
    names = [
        name
        for name, value in inspect.getmembers(ec2_metadata.EC2Metadata)
        if isinstance(value, property | cached_property) and not name.startswith("_")
    ]
    assert len(names) >= 33
    for name in names:
        getattr(metadata, name)
    [card] = metadata.network_interfaces.values()
    for name, value in inspect.getmembers(ec2_metadata.NetworkInterface):
        if isinstance(value, cached_property):
            getattr(card, name)


def test_the_properties_are_those_of_describe_instances(rig, instance):
    metadata = reader(rig, instance)
    [shown] = instance["NetworkInterfaces"]
    [card] = metadata.network_interfaces.values()
    reply = rig.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])
    assert metadata.reservation_id == reply["Reservations"][0]["ReservationId"]
    assert metadata.mac == card.mac == shown["MacAddress"]
    assert metadata.ami_launch_index == instance["AmiLaunchIndex"] == 0
    assert metadata.security_groups == [group["GroupName"] for group in shown["Groups"]]
    assert metadata.public_hostname == instance["PublicDnsName"]
    assert metadata.private_hostname == instance["PrivateDnsName"]
    assert metadata.instance_life_cycle == "on-demand"
    assert metadata.instance_profile_name is None
    assert metadata.account_id == reply["Reservations"][0]["OwnerId"]
    assert (metadata.partition, metadata.domain) == ("aws", "amazonaws.com")
    assert metadata.availability_zone_id.startswith("use1-az")
    assert metadata.user_data == rig.user_data("runcmd:\n  - echo from the boot\n").encode()
    assert metadata.public_keys["metadata"].openssh_key.split()[1] == rig.public_key.split()[1]
    assert metadata.tags["Name"] == "read"
    assert (card.interface_id, card.subnet_id) == (shown["NetworkInterfaceId"], shown["SubnetId"])
    assert (card.vpc_id, card.device_number) == (shown["VpcId"], 0)
    assert card.private_ipv4s == [instance["PrivateIpAddress"]]
    assert card.ipv4_associations == {instance["PublicIpAddress"]: [instance["PrivateIpAddress"]]}
    assert card.security_group_ids == [group["GroupId"] for group in shown["Groups"]]
    assert card.vpc_ipv4_cidr_block


def test_tags_are_shown_only_where_enabled(rig):
    plain = rig.up()
    assert rig.metadata_v2(plain, "latest/meta-data/tags/instance")[0] == 404
    assert "tags/" not in rig.metadata_v2(plain, "latest/meta-data/")[1].splitlines()


def test_a_spot_instance_reads_its_notice(rig):
    spot = rig.up(InstanceMarketOptions={"MarketType": "spot"})
    metadata = reader(rig, spot)
    assert metadata.instance_life_cycle == "spot"
    assert metadata.spot_instance_action is None
    rig.control.interrupt(spot["InstanceId"], grace_s=60.0)
    assert metadata.spot_instance_action.action == "terminate"


def test_the_console_shows_the_boot(rig, instance):
    wait_for(lambda: "status: done" in rig.console(instance["InstanceId"]), "the boot is over")
    assert "from the boot" in rig.console(instance["InstanceId"])


def test_the_console_of_a_terminated_instance_is_kept(rig):
    ended = rig.up(UserData="#!/bin/sh\necho last words\n")["InstanceId"]
    wait_for(lambda: "last words" in rig.console(ended), "its script has run")
    rig.end(ended)
    assert "last words" in rig.console(ended)
