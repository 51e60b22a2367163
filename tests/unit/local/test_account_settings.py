"""An instance profile, a key, tags and a permissions boundary of the user's own, on the local EC2."""

import json
from dataclasses import replace

import pytest

from dlcloud.cloud.account.roles import IamRoles, Role
from dlcloud.cloud.compute.requests import run_instances_arguments, template_data
from dlcloud.model.instance import Image
from dlcloud.resources.texts import control_policy
from tests.fakes.local_ec2 import UBUNTU
from tests.fakes.samples import cluster
from tests.fakes.samples import request as launch_request

BOUNDARY = "arn:aws:iam::123456789012:policy/Boundary"
KEY = "alias/disks"
OWN = {"team": "vision", "cost-center": "0042"}


@pytest.fixture(scope="module")
def profile(rig):
    iam = rig.client("iam")
    iam.create_instance_profile(InstanceProfileName="trainers")
    return "trainers"


def own_request(**others):
    tagged = replace(cluster(), own_tags=json.dumps(OWN))
    image = Image(image_id=UBUNTU, name="Ubuntu", root_device="/dev/sda1")
    values = {"image": image, "tags": tagged.tags, "security_group_id": "", **others}
    return launch_request(**values)


def test_a_launch_has_profile_key_and_tags(rig, profile):
    arguments = run_instances_arguments(own_request(profile=profile, kms_key=KEY))
    (instance,) = rig.ec2.run_instances(**arguments)["Instances"]
    (shown,) = rig.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0][
        "Instances"
    ]
    assert shown["IamInstanceProfile"]["Arn"].endswith("/trainers")
    volume_id = shown["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    (volume,) = rig.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert (volume["Encrypted"], volume["KmsKeyId"]) == (True, KEY)
    for resource in (shown, volume):
        tags = {tag["Key"]: tag["Value"] for tag in resource["Tags"]}
        assert OWN.items() <= tags.items()
        assert tags["dlcloud:cluster"] == cluster().cluster_id
    rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


def test_a_launch_template_has_the_same_profile_and_key():
    data = template_data(own_request(profile="trainers", kms_key=KEY), "")
    assert data["IamInstanceProfile"] == {"Name": "trainers"}
    assert data["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] == KEY
    plain = template_data(own_request(), "")
    assert "IamInstanceProfile" not in plain
    assert "KmsKeyId" not in plain["BlockDeviceMappings"][0]["Ebs"]


def test_a_role_of_dlcloud_has_the_boundary_and_the_tags(rig):
    role = Role(
        cluster_id="bounded",
        policy=control_policy("bounded", "us-east-1"),
        principals=("ec2.amazonaws.com",),
        tags=OWN,
        boundary=BOUNDARY,
    )
    roles = IamRoles(clients=rig.clients(), control_policy=lambda *_: "", pause=lambda _: None)
    name = roles.put_role(role)
    shown = rig.client("iam").get_role(RoleName=name)["Role"]
    assert shown["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY
    assert {tag["Key"]: tag["Value"] for tag in shown["Tags"]} == OWN
    roles.delete_role("bounded")
