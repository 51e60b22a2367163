"""What there is to launch on the local EC2: types, zones, images, prices, spot scores and quotas."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from dlcloud.launch.preflight import run_preflight
from dlcloud.planning.plan import make_plan
from dlcloud.recipe.recipe import read_recipe
from tests.fakes.local_ec2 import refused
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


def test_retired_types_can_be_rehearsed(rig):
    types = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "g4ad.xlarge"]
    described = rig.ec2.describe_instance_types(InstanceTypes=types)["InstanceTypes"]
    vcpus = {entry["InstanceType"]: entry["VCpuInfo"]["DefaultVCpus"] for entry in described}
    assert vcpus["p3.8xlarge"] == 32
    assert rig.run(InstanceType="p3.2xlarge", Placement={"AvailabilityZone": "us-east-1b"})


def test_offerings_are_filtered_with_wildcards(rig):
    def offered(**filters):
        asked = [{"Name": name.replace("_", "-"), "Values": [value]} for name, value in filters.items()]
        reply = rig.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=asked)
        return [entry["InstanceType"] for entry in reply["InstanceTypeOfferings"]]

    assert {name.partition(".")[0] for name in offered(instance_type="c5.*", location="us-east-1?")} == {"c5"}
    assert len(offered(instance_type="p3.2xlarge")) >= 3
    with refused("UnsupportedOperation"):
        offered(none="x")


def test_the_account_has_the_regions_of_its_partition(rig):
    regions = {region["RegionName"] for region in rig.ec2.describe_regions()["Regions"]}
    assert {"us-east-1", "eu-west-1"} <= regions
    assert not [name for name in regions if name.startswith(("cn-", "us-gov-"))]


@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-1"])
def test_parameters_name_images_that_exist(rig, region):
    ssm, ec2 = rig.client("ssm", region), rig.client("ec2", region)
    for name in (
        "deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
        "deeplearning/ami/x86_64/base-oss-nvidia-driver-ubuntu-22.04/latest/ami-id",
        "canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
    ):
        image_id = ssm.get_parameter(Name=f"/aws/service/{name}")["Parameter"]["Value"]
        [image] = ec2.describe_images(ImageIds=[image_id])["Images"]
        assert image["Architecture"] == "x86_64"
    with refused("ParameterNotFound"):
        ssm.get_parameter(Name="/aws/service/deeplearning/ami/x86_64/none/latest/ami-id")


def test_images_by_owner_and_name(rig):
    named = [{"Name": "name", "Values": ["Deep Learning Base*Ubuntu 22.04*"]}]
    assert len(rig.ec2.describe_images(Owners=["898082745236"], Filters=named)["Images"]) == 1


def test_spot_prices_come_from_the_catalog(rig):
    history = rig.ec2.describe_spot_price_history(
        InstanceTypes=["c7i.4xlarge"], StartTime=datetime.now(UTC), ProductDescriptions=["Linux/UNIX"]
    )["SpotPriceHistory"]
    assert len({entry["AvailabilityZone"] for entry in history}) >= 3
    assert all(0.714 * 0.29 < float(entry["SpotPrice"]) < 0.714 * 0.46 for entry in history)
    assert all((datetime.now(UTC) - entry["Timestamp"]).total_seconds() < 7200 for entry in history)


def test_the_price_list_knows_a_type(rig):
    pricing = rig.client("pricing")

    def prices(name, region="us-east-1"):
        terms = {"instanceType": name, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared"}
        terms |= {"preInstalledSw": "NA", "capacitystatus": "Used"}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
        return pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]

    for region in ("us-east-1", "eu-north-1"):
        [product] = prices("c7i.4xlarge", region)
        assert '"USD": "0.714' in product
    assert prices("c99.huge") == []


def test_placement_scores_follow_capacity(rig):
    def scores(names, *regions, **options):
        asked = {
            "InstanceTypes": names,
            "TargetCapacity": 4,
            "RegionNames": regions or ["us-east-1"],
            **options,
        }
        return rig.ec2.get_spot_placement_scores(**asked)["SpotPlacementScores"]

    types = ["c8i.large", "m6i.large", "r6i.large"]
    assert scores(types) == [{"Region": "us-east-1", "Score": 9}]
    for few in (types[:2], ["m6i.large", "m6id.large", "r6i.large"]):
        assert [one["Score"] for one in scores(few)] == [3]
    zones = scores(types, "us-east-1", "us-west-2", SingleAvailabilityZone=True)
    there = {(one["Region"], one["AvailabilityZoneId"][:6]) for one in zones}
    assert {("us-east-1", "use1-a"), ("us-west-2", "usw2-a")} == there
    for name in types:
        rig.control.set_capacity(name, 0)
    assert [one["Score"] for one in scores(types)] == [1]
    for name in types:
        rig.control.set_capacity(name, None)


def test_quotas_of_ec2(rig):
    quotas = rig.client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")["Quota"]["Value"] > 0
    with refused("NoSuchResourceException"):
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-00000000")


PROGRAM = """
import json, sys
if sys.argv[1] == "less":
    from dlcloud.local.moto_data import RegionOfferings, load_less
    load_less()
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
for kind, regions in INSTANCE_TYPE_OFFERINGS.items():
    if sys.argv[1] == "less":
        assert not any(regions.values())
        INSTANCE_TYPE_OFFERINGS[kind] = RegionOfferings(kind, list(regions), ["p3.2xlarge"])
shown = {kind: regions.get("eu-west-1", []) for kind, regions in INSTANCE_TYPE_OFFERINGS.items()}
places = {kind: sorted(regions) for kind, regions in INSTANCE_TYPE_OFFERINGS.items()}
added = [entry for entries in shown.values() for entry in entries if entry["InstanceType"] == "p3.2xlarge"]
shown = {kind: [e for e in entries if e not in added] for kind, entries in shown.items()}
print(json.dumps([INSTANCE_TYPES, shown, places, len(added)], sort_keys=True))
"""


def load(how):
    words = [sys.executable, "-c", PROGRAM, how]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_types_and_offerings_are_those_of_moto_and_retired_types_are_added():
    less, moto = load("less"), load("moto")
    assert less[:3] == moto[:3]
    assert less[1]["region"]
    assert less[3] == 7  # three zones by name and by id, and the region
