"""Every gap of moto that the local cloud closes, through boto3."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from tests.fakes.local_ec2 import UBUNTU, refused, wait_for


def test_an_instance_is_pending_for_the_boot_delay(rig):
    rig.control.set_boot_delay(600.0)
    [slow] = rig.run()
    assert rig.state(slow) == "pending"
    rig.ec2.terminate_instances(InstanceIds=[slow])
    rig.control.set_boot_delay(1.0)
    began = time.monotonic()
    rig.up()
    assert time.monotonic() - began >= 1.0


def test_a_client_token_makes_one_launch(rig):
    first = rig.run(2, ClientToken="one-launch")
    assert rig.run(2, ClientToken="one-launch") == first
    with refused("IdempotentParameterMismatch"):
        rig.run(1, ClientToken="one-launch")


def test_a_client_token_makes_one_launch_of_two_at_once(rig):
    with ThreadPoolExecutor(4) as pool:
        launched = list(pool.map(lambda _: tuple(rig.run(ClientToken="race")), range(4)))
    assert len(set(launched)) == 1


def test_a_refused_launch_may_be_repeated_with_its_token(rig):
    rig.control.add_fault("RunInstances", "VcpuLimitExceeded", times=1)
    with refused("VcpuLimitExceeded"):
        rig.run(ClientToken="again")
    assert rig.run(ClientToken="again")


def test_max_count_is_honoured_as_far_as_capacity_goes(rig):
    options = {"ImageId": UBUNTU, "InstanceType": "c7i.xlarge"}
    assert len(rig.ec2.run_instances(MinCount=1, MaxCount=3, **options)["Instances"]) == 3
    rig.control.set_capacity("c7i.xlarge", 5)
    assert len(rig.ec2.run_instances(MinCount=1, MaxCount=3, **options)["Instances"]) == 2
    with pytest.raises(ClientError) as caught:
        rig.ec2.run_instances(MinCount=1, MaxCount=3, **options)
    assert caught.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    rig.control.set_capacity("c7i.xlarge", None)
    assert len(rig.ec2.run_instances(MinCount=1, MaxCount=3, **options)["Instances"]) == 3


def test_a_terminated_instance_gives_its_capacity_back(rig):
    rig.control.set_capacity("c7i.2xlarge", 1)
    [instance_id] = rig.run(InstanceType="c7i.2xlarge")
    with refused("InsufficientInstanceCapacity"):
        rig.run(InstanceType="c7i.2xlarge")
    rig.end(instance_id)
    assert rig.run(InstanceType="c7i.2xlarge")


def test_capacity_of_one_zone_sends_launches_to_another(rig):
    rig.control.set_capacity("m7i.large", 0, zone="us-east-1a")
    with refused("InsufficientInstanceCapacity"):
        rig.run(InstanceType="m7i.large", Placement={"AvailabilityZone": "us-east-1a"})
    [instance_id] = rig.run(InstanceType="m7i.large")
    assert rig.describe(instance_id)["Placement"]["AvailabilityZone"] != "us-east-1a"


def test_a_launch_template_is_applied_whole(rig):
    rig.ec2.create_launch_template(
        LaunchTemplateName="whole",
        LaunchTemplateData={
            "ImageId": UBUNTU,
            "InstanceType": "c7i.large",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "InstanceMarketOptions": {"MarketType": "spot"},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}
            ],
        },
    )
    reply = rig.ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateName": "whole"})
    instance = rig.describe(reply["Instances"][0]["InstanceId"])
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert {"Key": "from", "Value": "template"} in instance["Tags"]
    behavior = rig.ec2.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert behavior["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_retired_types_can_be_rehearsed(rig):
    names = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "g4ad.xlarge"]
    described = rig.ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"]
    assert {entry["InstanceType"]: entry["VCpuInfo"]["DefaultVCpus"] for entry in described}[
        "p3.8xlarge"
    ] == 32
    offered = rig.ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p3.2xlarge"]}]
    )
    assert len(offered["InstanceTypeOfferings"]) >= 3
    assert rig.run(InstanceType="p3.2xlarge", Placement={"AvailabilityZone": "us-east-1b"})


def test_spot_prices_come_from_the_catalog(rig):
    history = rig.ec2.describe_spot_price_history(
        InstanceTypes=["c7i.4xlarge"], StartTime=datetime.now(UTC), ProductDescriptions=["Linux/UNIX"]
    )["SpotPriceHistory"]
    assert len({entry["AvailabilityZone"] for entry in history}) >= 3
    assert all(0.1 < float(entry["SpotPrice"]) < 0.714 for entry in history)
    assert all((datetime.now(UTC) - entry["Timestamp"]).total_seconds() < 7200 for entry in history)


def test_the_price_list_knows_a_type(rig):
    terms = {
        "instanceType": "c7i.4xlarge",
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
    pricing = rig.client("pricing")
    [product] = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    assert '"USD": "0.714' in product
    filters[0]["Value"] = "c99.huge"
    assert pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"] == []


def test_placement_scores_follow_capacity(rig):
    types = ["c8i.large", "m6i.large", "r6i.large"]
    options = {"InstanceTypes": types, "TargetCapacity": 4, "RegionNames": ["us-east-1"]}
    [score] = rig.ec2.get_spot_placement_scores(**options)["SpotPlacementScores"]
    assert score == {"Region": "us-east-1", "Score": 9}
    for few in (types[:2], ["m6i.large", "m6id.large", "r6i.large"]):
        [score] = rig.ec2.get_spot_placement_scores(**{**options, "InstanceTypes": few})[
            "SpotPlacementScores"
        ]
        assert score["Score"] == 3
    for name in types:
        rig.control.set_capacity(name, 0)
    [score] = rig.ec2.get_spot_placement_scores(**options)["SpotPlacementScores"]
    assert score["Score"] == 1
    zones = rig.ec2.get_spot_placement_scores(**options, SingleAvailabilityZone=True)["SpotPlacementScores"]
    assert all(entry["AvailabilityZoneId"].startswith("use1-az") for entry in zones)
    for name in types:
        rig.control.set_capacity(name, None)


def test_quotas_of_ec2(rig):
    quotas = rig.client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")["Quota"]["Value"] > 0
    with refused("NoSuchResourceException"):
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-00000000")


@pytest.mark.parametrize(
    "name",
    [
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-ubuntu-22.04/latest/ami-id",
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
    ],
)
@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-1"])
def test_parameters_name_images_that_exist(rig, name, region):
    image_id = rig.client("ssm", region).get_parameter(Name=name)["Parameter"]["Value"]
    [image] = rig.client("ec2", region).describe_images(ImageIds=[image_id])["Images"]
    assert image["Architecture"] == "x86_64"


def test_an_unknown_parameter_is_not_found(rig):
    with refused("ParameterNotFound"):
        rig.client("ssm").get_parameter(Name="/aws/service/deeplearning/ami/x86_64/none/latest/ami-id")


def test_images_by_owner_and_name(rig):
    images = rig.ec2.describe_images(
        Owners=["898082745236"], Filters=[{"Name": "name", "Values": ["Deep Learning Base*Ubuntu 22.04*"]}]
    )
    assert len(images["Images"]) == 1


def test_terminating_shows_shutting_down_then_terminated(rig):
    instance = rig.up()
    reply = rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert reply["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    ended = rig.await_state(instance["InstanceId"], "terminated")
    assert ended["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    again = rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert again["TerminatingInstances"][0]["CurrentState"]["Name"] == "terminated"
    # No program ignored SIGTERM, so nothing waited to be killed.
    assert "after SIGTERM" not in rig.site._paths.log.read_text()


def test_an_instance_that_shuts_down_stops_or_terminates_as_its_launch_says(rig):
    kept, gone = (rig.up(InstanceInitiatedShutdownBehavior=end) for end in ("stop", "terminate"))
    for instance, state, command in ((kept, "stopped", "poweroff"), (gone, "terminated", "shutdown now")):
        rig.on(instance, f"sudo {command}")
        ended = rig.await_state(instance["InstanceId"], state)
        assert ended["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


UNSUPPORTED = {
    "allocate_address": {},
    "attach_volume": {"Device": "/dev/sdf", "InstanceId": "i-0123456789abcdef0", "VolumeId": "vol-1"},
    "create_launch_template_version": {"LaunchTemplateName": "one", "LaunchTemplateData": {}},
    "create_volume": {"AvailabilityZone": "us-east-1a", "Size": 1},
    "describe_spot_instance_requests": {},
    "purchase_capacity_block": {"CapacityBlockOfferingId": "cb-1", "InstancePlatform": "Linux/UNIX"},
    "register_image": {"Name": "image"},
    "request_spot_instances": {"LaunchSpecification": {}},
    "start_instances": {"InstanceIds": ["i-0123456789abcdef0"]},
    "stop_instances": {"InstanceIds": ["i-0123456789abcdef0"]},
}


@pytest.mark.parametrize("action", UNSUPPORTED)
def test_what_is_not_supported_says_so(rig, action):
    with pytest.raises(ClientError, match=r"\(UnsupportedOperation\).*does not support") as refused:
        getattr(rig.ec2, action)(**UNSUPPORTED[action])
    assert action.replace("_", "") in str(refused.value).lower()


def test_sixty_four_instances(rig):
    options = {"ImageId": UBUNTU, "InstanceType": "c5.large", "UserData": rig.user_data()}
    ids = [i["InstanceId"] for i in rig.ec2.run_instances(MinCount=64, MaxCount=64, **options)["Instances"]]

    def running():
        reply = rig.ec2.describe_instance_status(InstanceIds=ids)
        return len(reply["InstanceStatuses"]) == 64

    wait_for(running, "64 run", 30.0)
    rig.ec2.terminate_instances(InstanceIds=ids)
    left = {f"{rig.folder}/instances/{instance_id}" for instance_id in ids}
    wait_for(lambda: not left & {e["folder"] for e in rig.control.status()["instances"]}, "64 are gone", 30.0)


def test_scores_of_several_regions_are_one_answer_with_the_zones_of_each(rig):
    answer = rig.ec2.get_spot_placement_scores(
        InstanceTypes=["c8i.large", "m6i.large", "r6i.large"],
        TargetCapacity=4,
        RegionNames=["us-east-1", "us-west-2"],
        SingleAvailabilityZone=True,
    )
    named = {(one["Region"], one["AvailabilityZoneId"][:4]) for one in answer["SpotPlacementScores"]}
    assert named == {("us-east-1", "use1"), ("us-west-2", "usw2")}
