"""What EC2 refuses, and what it gives to those who ask for no more than needed."""

import json

import pytest

from tests.fakes.local_ec2 import UBUNTU, refused

TAG = [{"Key": "aws:x", "Value": "1"}]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"UserData": "x" * 16385}, "InvalidParameterValue", "User data is limited to 16384 bytes"),
        ({"InstanceType": "c7g.large"}, "InvalidParameterValue", "architecture 'arm64'"),
        ({"ImageId": "ami-nothing"}, r"InvalidAMIID\.Malformed", ""),
        (
            {"IamInstanceProfile": {"Name": "none"}},
            "InvalidParameterValue",
            "Invalid IAM Instance Profile name",
        ),
        (
            {"IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/none"}},
            "InvalidParameterValue",
            "Invalid IAM Instance Profile ARN",
        ),
        ({"InstanceType": "c99.huge"}, "InvalidInstanceType|InvalidParameterValue", ""),
        ({"ImageId": "ami-0123456789abcdef0"}, r"InvalidAMIID\.NotFound", ""),
        ({"ImageId": ""}, "MissingParameter", ""),
        ({"KeyName": "missing"}, r"InvalidKeyPair\.NotFound", ""),
        ({"SubnetId": "subnet-0123456789"}, r"InvalidSubnetID\.NotFound", ""),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": TAG}]}, "InvalidParameterValue", ""),
        ({"DryRun": True}, "DryRunOperation", ""),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, r"InvalidGroup\.NotFound", ""),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue", ""),
        ({"Placement": {"GroupName": "none"}}, r"InvalidPlacementGroup\.Unknown", ""),
        (
            {"LaunchTemplate": {"LaunchTemplateName": "none"}},
            r"InvalidLaunchTemplateName\.NotFoundException",
            "",
        ),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 4}}]},
            "InvalidBlockDeviceMapping",
            "smaller than snapshot",
        ),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {}}]}, "MissingParameter", ""),
    ],
)
def test_a_launch_is_refused_with_the_code_of_ec2(rig, options, code, text):
    with refused(code, text):
        rig.run(**options)


def test_user_data_of_16_kib_is_taken(rig):
    assert rig.run(UserData="#" * 16384)


@pytest.mark.parametrize(("least", "text"), [(3, "minCount"), (0, "")])
def test_a_least_count_that_is_none_or_above_the_most_is_refused(rig, least, text):
    with refused("InvalidParameterValue", text):
        rig.ec2.run_instances(ImageId=UBUNTU, InstanceType="c7i.large", MinCount=least, MaxCount=2)


@pytest.mark.parametrize("operation", ["describe_instances", "terminate_instances"])
def test_malformed_and_absent_ids_are_distinguished(rig, operation):
    with refused(r"InvalidInstanceID\.Malformed"):
        getattr(rig.ec2, operation)(InstanceIds=["i-wrong"])
    with refused(r"InvalidInstanceID\.NotFound"):
        getattr(rig.ec2, operation)(InstanceIds=["i-0123456789abcdef0"])


def test_an_image_shows_its_root_device(rig):
    [image] = rig.ec2.describe_images(ImageIds=[UBUNTU])["Images"]
    [mapping] = image["BlockDeviceMappings"]
    assert mapping["DeviceName"] == image["RootDeviceName"]
    assert mapping["Ebs"]["Encrypted"] is False
    assert mapping["Ebs"]["DeleteOnTermination"] is True


def volumes(rig, instance_id):
    filters = [{"Name": "attachment.instance-id", "Values": [instance_id]}]
    return rig.ec2.describe_volumes(Filters=filters)["Volumes"]


def volume_states(rig, ids):
    shown = rig.ec2.describe_volumes()["Volumes"]
    return {volume["VolumeId"]: volume["State"] for volume in shown if volume["VolumeId"] in ids}


@pytest.mark.parametrize("mappings", [[], [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20}}]])
def test_no_root_disk_outlives_its_instance(rig, mappings):
    instance = rig.up(BlockDeviceMappings=mappings)
    ids = {volume["VolumeId"] for volume in volumes(rig, instance["InstanceId"])}
    assert len(ids) == 1
    rig.end(instance["InstanceId"])
    assert not volume_states(rig, ids)


def test_a_root_disk_that_is_to_stay_stays(rig):
    keep = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "DeleteOnTermination": False}}]
    instance = rig.up(BlockDeviceMappings=keep)
    ids = {volume["VolumeId"] for volume in volumes(rig, instance["InstanceId"])}
    rig.end(instance["InstanceId"])
    assert list(volume_states(rig, ids).values()) == ["available"]


def test_instance_stores_and_further_disks_are_accepted(rig):
    (image,) = rig.ec2.describe_images(Filters=[{"Name": "image-id", "Values": [UBUNTU]}])["Images"]
    mappings = image["BlockDeviceMappings"]
    del mappings[0]["Ebs"]["Encrypted"]
    mappings += [{"VirtualName": "ephemeral0", "DeviceName": "/dev/sdb"}]
    mappings += [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 5}}]
    instance = rig.up(BlockDeviceMappings=mappings)
    assert sorted(volume["Size"] for volume in volumes(rig, instance["InstanceId"])) == [5, 8]


def test_every_instance_of_a_launch_has_the_profile(rig):
    iam = rig.client("iam")
    trust = {"Version": "2012-10-17", "Statement": []}
    iam.create_role(RoleName="all", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="all")
    iam.add_role_to_instance_profile(InstanceProfileName="all", RoleName="all")
    ids = rig.run(3, IamInstanceProfile={"Name": "all"})
    associations = rig.ec2.describe_iam_instance_profile_associations()["IamInstanceProfileAssociations"]
    assert set(ids) <= {association["InstanceId"] for association in associations}


def test_offerings_are_filtered_with_wildcards(rig):
    filters = [{"Name": "instance-type", "Values": ["c5.*"]}, {"Name": "location", "Values": ["us-east-1?"]}]
    reply = rig.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=filters)
    offered = reply["InstanceTypeOfferings"]
    assert {entry["InstanceType"].partition(".")[0] for entry in offered} == {"c5"}
    with refused("UnsupportedOperation"):
        rig.ec2.describe_instance_type_offerings(Filters=[{"Name": "none", "Values": ["x"]}])


DLAMI_GIB = 75


def test_a_deep_learning_image_takes_no_volume_below_its_snapshot(rig):
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    (parameter,) = rig.client("ssm").get_parameters(Names=[name])["Parameters"]
    (image,) = rig.ec2.describe_images(ImageIds=[parameter["Value"]])["Images"]
    (root,) = image["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] == DLAMI_GIB
    devices = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50}}]
    with refused("InvalidBlockDeviceMapping", f"expect size >= {DLAMI_GIB}GB"):
        rig.run(ImageId=image["ImageId"], BlockDeviceMappings=devices)
