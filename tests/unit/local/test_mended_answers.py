"""What EC2 refuses and moto takes: the local EC2 refuses it, too."""

import pytest

from tests.fakes.local_ec2 import refused

UNKNOWN = "i-0123456789abcdef0"


@pytest.fixture(scope="module")
def instance(rig):
    return rig.up()


TAG = [{"Key": "aws:x", "Value": "1"}]
REFUSED = {
    "tags": (
        "InvalidParameterValue",
        lambda rig, instance: rig.ec2.create_tags(Resources=[instance["InstanceId"]], Tags=TAG),
    ),
    "unknown resource": (
        "InvalidInstanceID.NotFound",
        lambda rig, _: rig.ec2.create_tags(Resources=[UNKNOWN], Tags=[{"Key": "x", "Value": "1"}]),
    ),
    "group in use": (
        "DependencyViolation",
        lambda rig, instance: rig.ec2.delete_security_group(GroupId=instance["SecurityGroups"][0]["GroupId"]),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ec2_refuses_is_refused(rig, instance, name):
    code, call = REFUSED[name]
    with refused(code):
        call(rig, instance)


def test_tags_are_kept_of_what_exists(rig, instance):
    volume = rig.ec2.describe_volumes()["Volumes"][0]["VolumeId"]
    group = instance["SecurityGroups"][0]["GroupId"]
    names = [instance["InstanceId"], volume, group, instance["SubnetId"], instance["VpcId"]]
    rig.ec2.create_tags(Resources=names, Tags=[{"Key": "kept", "Value": "1"}])
    tags = rig.ec2.describe_tags(Filters=[{"Name": "key", "Values": ["kept"]}])["Tags"]
    assert {tag["ResourceId"] for tag in tags} == set(names)
