"""Types beyond the table on the local EC2: the image that they get boots, another one does not."""

import pytest
from botocore.exceptions import ClientError

from dlcloud.launch.preflight import run_preflight
from dlcloud.planning.plan import make_plan
from dlcloud.recipe.recipe import read_recipe
from tests.unit.local.test_instance_roles import cloud_of

RECIPE = "name: own\ncloud: local\ninstances:\n  types: [{}]\nworkload:\n  command: ./run\n"


@pytest.mark.parametrize(
    ("name", "image", "architecture"),
    [
        ("c7g.large", "ubuntu-noble-24.04-arm64", "arm64"),
        ("g5g.xlarge", "ARM64 Base OSS Nvidia Driver GPU AMI", "arm64"),
        ("c8a.large", "ubuntu-noble-24.04-amd64", "x86_64"),
        ("g7e.2xlarge", "Deep Learning Base OSS Nvidia Driver GPU AMI", "x86_64"),
    ],
)
def test_a_type_beyond_the_table_gets_an_image_that_it_boots(rig, name, image, architecture):
    recipe = read_recipe(RECIPE.format(name), "recipe.yaml")
    preflight = run_preflight(recipe, cloud=cloud_of(rig.clients()), cidrs=["127.0.0.1/32"])
    chosen = make_plan(recipe, preflight.facts()).machine.image
    (described,) = rig.ec2.describe_images(ImageIds=[chosen.image_id])["Images"]
    assert image in described["Name"]
    assert (chosen.architecture, described["Architecture"]) == (architecture, architecture)
    rig.ec2.terminate_instances(InstanceIds=rig.run(InstanceType=name, ImageId=chosen.image_id))


def test_an_image_of_another_architecture_does_not_boot(rig):
    with pytest.raises(ClientError, match="does not match the architecture 'x86_64' of the specified AMI"):
        rig.run(InstanceType="c7g.large")


def test_the_account_has_the_regions_of_its_partition(rig):
    names = {region["RegionName"] for region in rig.ec2.describe_regions()["Regions"]}
    assert {"us-east-1", "eu-west-1"} <= names
    assert not [name for name in names if name.startswith(("cn-", "us-gov-"))]
