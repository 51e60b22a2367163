"""What EC2 refuses and moto takes: the local EC2 refuses it, too."""

import pytest
from botocore.exceptions import ClientError

UNKNOWN = "i-0123456789abcdef0"


@pytest.fixture(scope="module")
def instance(rig):
    return rig.up()


def run(rig, **options):
    image = {"ImageId": "ami-0d1c10cd000002404", "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
    return rig.ec2.run_instances(**{**image, **options})


TAG = [{"Key": "aws:x", "Value": "1"}]
REFUSED = {
    "no instance": ("InvalidParameterValue", lambda rig, _: run(rig, MinCount=0)),
    "tags of a launch": (
        "InvalidParameterValue",
        lambda rig, _: run(rig, TagSpecifications=[{"ResourceType": "instance", "Tags": TAG}]),
    ),
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
    with pytest.raises(ClientError) as caught:
        call(rig, instance)
    assert caught.value.response["Error"]["Code"] == code


def test_tags_are_kept_of_what_exists(rig, instance):
    volume = rig.ec2.describe_volumes()["Volumes"][0]["VolumeId"]
    group = instance["SecurityGroups"][0]["GroupId"]
    names = [instance["InstanceId"], volume, group, instance["SubnetId"], instance["VpcId"]]
    rig.ec2.create_tags(Resources=names, Tags=[{"Key": "kept", "Value": "1"}])
    tags = rig.ec2.describe_tags(Filters=[{"Name": "key", "Values": ["kept"]}])["Tags"]
    assert {tag["ResourceId"] for tag in tags} == set(names)
