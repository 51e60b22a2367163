"""Which image a recipe's word means, along every path that AWS's answers can take."""

import pytest
from botocore.stub import ANY

from dlcloud.cloud.compute import images
from dlcloud.cloud.compute.images import DEEP_LEARNING_OWNER
from dlcloud.model.errors import CloudError, CredentialsError
from tests.fakes.clock import FakeClock
from tests.unit.cloud.conftest import cloud_over

UBUNTU = images.UBUNTU["x86_64"]
DEEP_LEARNING = images.DEEP_LEARNING["x86_64"]


def described(image_id, name="", gib=8, architecture="x86_64"):
    """Return arguments and answer of DescribeImages for an image."""
    volume = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": gib, "SnapshotId": "snap-1"}}
    answer = {
        "ImageId": image_id,
        "Name": name,
        "RootDeviceName": "/dev/sda1",
        "Architecture": architecture,
        "BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}, volume],
    }
    return {"ImageIds": [image_id]}, [answer]


def parameter(name, value):
    return {"Name": name, "Value": value, "Type": "String"}


@pytest.fixture
def resolve(clients, stub):
    """Return what resolves an image with these answers of SSM and EC2."""

    def with_answers(image, *, names=None, parameters=(), answers=None, gpu=False, architecture="x86_64"):
        if names is not None:
            answer = {"Parameters": list(parameters)}
            stub(clients.get("ssm")).add_response("get_parameters", answer, {"Names": list(names)})
        if answers is not None:
            arguments, answer = answers
            stub(clients.get("ec2")).add_response("describe_images", {"Images": answer}, arguments)
        return cloud_over(clients).images.resolve(image, gpu=gpu, architecture=architecture)

    return with_answers


def test_auto_with_a_gpu_is_the_deep_learning_ami_of_the_first_name(resolve):
    found = [parameter(name, f"ami-{number}") for number, name in enumerate(DEEP_LEARNING)]
    image = resolve(
        "auto", gpu=True, names=DEEP_LEARNING, parameters=reversed(found), answers=described("ami-0", gib=75)
    )
    assert (image.image_id, image.name, image.snapshot_gib) == ("ami-0", DEEP_LEARNING[0], 75)


def test_without_either_the_newest_by_name_is_taken(resolve):
    answer = [
        {"ImageId": f"ami-{day}", "Name": f"of day {day}", "CreationDate": f"2026-08-{day:02}T00:00:00Z"}
        for day in (3, 21, 9)
    ]
    arguments = {"Owners": [DEEP_LEARNING_OWNER], "Filters": ANY}
    image = resolve("auto", gpu=True, names=DEEP_LEARNING, answers=(arguments, answer))
    assert (image.image_id, image.name) == ("ami-21", "of day 21")


def test_ubuntu_is_found_by_name_where_a_region_has_no_parameter(resolve):
    name = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"
    arguments = {"Owners": ["099720109477"], "Filters": [{"Name": "name", "Values": [name]}]}
    answer = [{"ImageId": "ami-7", "Name": name, "CreationDate": "2026-08-03T00:00:00Z"}]
    assert resolve("auto", names=[UBUNTU], answers=(arguments, answer)).image_id == "ami-7"


def test_an_image_of_a_parameter_is_looked_up(resolve):
    answer = [{"ImageId": "ami-7", "Name": "ours", "RootDeviceName": "/dev/xvda"}]
    image = resolve(
        "/our/ami", names=["/our/ami"], parameters=[parameter("/our/ami", "ami-7")],
        answers=({"ImageIds": ["ami-7"]}, answer),
    )  # fmt: skip
    assert (image.image_id, image.root_device) == ("ami-7", "/dev/xvda")


NONE = ({"Owners": ANY, "Filters": ANY}, [])


@pytest.mark.parametrize(
    ("image", "answers", "message", "hint"),
    [
        ("gpu", (DEEP_LEARNING, NONE), "no Deep Learning AMI for x86_64 was found in us-east-1", ""),
        ("auto", ([UBUNTU], NONE), r"no Ubuntu 24\.04 .* was found", "instances.image"),
        ("/our/ami", (["/our/ami"], None), "there is no SSM parameter /our/ami in us-east-1", ""),
        ("ami-9", (None, ({"ImageIds": ["ami-9"]}, [])), "ami-9 does not exist in us-east-1", ""),
    ],
)
def test_an_image_that_is_not_there_is_an_error(resolve, image, answers, message, hint):
    names, found = answers
    with pytest.raises(CloudError, match=message) as caught:
        resolve(image.replace("gpu", "auto"), gpu=image == "gpu", names=names, answers=found)
    assert hint in caught.value.hint


def test_an_image_that_ec2_refuses_is_an_error(moto_cloud):
    with pytest.raises(CloudError, match="ami-0123456789abcdef0"):
        moto_cloud.images.resolve("ami-0123456789abcdef0", gpu=False)


def test_a_refusal_of_ssm_is_a_credentials_error(clients, stub):
    stub(clients.get("ssm")).add_client_error("get_parameters", "AccessDeniedException")
    with pytest.raises(CredentialsError, match="ssm:GetParameters"):
        cloud_over(clients).images.resolve("auto", gpu=False)


def test_an_image_that_ssm_names_is_described_once_a_day(clients, stub):
    cache, clock = AnswerMemory(), FakeClock()
    cloud = cloud_over(clients, clock=clock, images=cache)
    arguments, answer = described("ami-1")
    ssm, ec2 = stub(clients.get("ssm")), stub(clients.get("ec2"))
    names = {"Parameters": [parameter(UBUNTU, "ami-1")]}
    for _ in range(3):
        ssm.add_response("get_parameters", names, {"Names": [UBUNTU]})
    ec2.add_response("describe_images", {"Images": answer}, arguments)
    assert cloud.images.last("auto", gpu=False) is None
    first = cloud.images.resolve("auto", gpu=False)
    assert cloud.images.last("auto", gpu=False) == first
    assert cloud.images.last("auto", gpu=True) is None
    assert cloud.images.resolve("auto", gpu=False) == first
    clock.sleep(2 * 86400)
    assert cloud.images.last("auto", gpu=False) is None
    ec2.add_response("describe_images", {"Images": answer}, arguments)
    assert cloud.images.resolve("auto", gpu=False) == first
    ec2.assert_no_pending_responses()


class AnswerMemory(dict):
    """An answer cache without a store."""

    def put(self, subject, content, as_of):
        self[subject] = (content, as_of)
