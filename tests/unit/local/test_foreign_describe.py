"""DescribeInstances and the other lists as clients of EC2 read them: filters, wildcards, pages."""

import pytest

from dlcloud.local.ec2.differences import INSTANCE_FILTERS, STATUS_FILTERS
from tests.fakes.local_ec2 import UBUNTU, refused, wait_for


@pytest.fixture(scope="module")
def instance(rig):
    rig.ec2.import_key_pair(KeyName="filtered", PublicKeyMaterial=rig.public_key.encode())
    return rig.up(
        InstanceType="c5.4xlarge",
        KeyName="filtered",
        ClientToken="token-of-filters",
        InstanceMarketOptions={"MarketType": "spot"},
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "filtered*1"}]},
        ],
    )


def find(rig, name, *values):
    reply = rig.ec2.describe_instances(Filters=[{"Name": name, "Values": list(values)}])
    return [i["InstanceId"] for entry in reply["Reservations"] for i in entry["Instances"]]


@pytest.mark.usefixtures("instance")
def test_every_filter_answers(rig):
    for name in INSTANCE_FILTERS:
        assert isinstance(find(rig, name, "no-such-value"), list)
    for name in STATUS_FILTERS:
        filters = [{"Name": name, "Values": ["no-such-value"]}]
        assert rig.ec2.describe_instance_status(Filters=filters)["InstanceStatuses"] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("instance-type", "c5.*"),
        ("instance-type", "c5.?xlarge"),
        ("instance-lifecycle", "spot"),
        ("instance-state-code", "16"),
        ("client-token", "token-of-filters"),
        ("tag:Name", "filtered*"),
        ("tag:Name", r"filtered\*1"),
        ("tag-key", "Nam?"),
        ("tag-value", "filtered*"),
        ("key-name", "filter*"),
        ("root-device-name", "/dev/sda1"),
        ("tenancy", "default"),
        ("spot-instance-request-id", "sir-*"),
        ("metadata-options.http-tokens", "*"),
        ("availability-zone-id", "use1-az*"),
    ],
)
def test_a_filter_finds_the_instance(rig, instance, name, value):
    assert instance["InstanceId"] in find(rig, name, value)
    assert instance["InstanceId"] not in find(rig, name, "other")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("image-id", ["ImageId"]),
        ("vpc-id", ["VpcId"]),
        ("subnet-id", ["SubnetId"]),
        ("private-dns-name", ["PrivateDnsName"]),
        ("dns-name", ["PublicDnsName"]),
        ("ip-address", ["PublicIpAddress"]),
        ("private-ip-address", ["PrivateIpAddress"]),
        ("instance.group-id", ["NetworkInterfaces", 0, "Groups", 0, "GroupId"]),
    ],
)
def test_a_filter_takes_the_value_that_is_shown(rig, instance, name, path):
    value = instance
    for key in path:
        value = value[key]
    assert instance["InstanceId"] in find(rig, name, value)


def test_the_launch_time_and_the_reservation_find_an_instance(rig, instance):
    day = f"{instance['LaunchTime']:%Y-%m-%d}T*"
    exact = f"{instance['LaunchTime']:%Y-%m-%dT%H:%M:%S}.000Z"
    assert instance["InstanceId"] in find(rig, "launch-time", day)
    assert instance["InstanceId"] in find(rig, "launch-time", exact)
    reply = rig.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])
    reservation_id = reply["Reservations"][0]["ReservationId"]
    assert find(rig, "reservation-id", reservation_id) == [instance["InstanceId"]]


def test_filters_are_joined_by_and_and_their_values_by_or(rig, instance):
    filters = [
        {"Name": "instance-type", "Values": ["m5.large", "c5.*"]},
        {"Name": "tag:Name", "Values": ["filtered*"]},
    ]
    reply = rig.ec2.describe_instances(Filters=filters)
    assert reply["Reservations"][0]["Instances"][0]["InstanceId"] == instance["InstanceId"]
    filters[1]["Values"] = ["absent"]
    assert rig.ec2.describe_instances(Filters=filters)["Reservations"] == []


def test_an_unknown_filter_is_refused(rig):
    with refused("UnsupportedOperation"):
        find(rig, "no-such-filter", "x")


def test_the_status_is_filtered(rig, instance):
    filters = [{"Name": "instance-status.status", "Values": ["ok"]}]
    statuses = rig.ec2.describe_instance_status(Filters=filters)["InstanceStatuses"]
    assert instance["InstanceId"] in [status["InstanceId"] for status in statuses]


@pytest.fixture(scope="module")
def twelve(rig):
    options = {"ImageId": UBUNTU, "InstanceType": "c6i.large"}
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "paged"}]}]
    reply = rig.ec2.run_instances(MinCount=12, MaxCount=12, TagSpecifications=tags, **options)
    ids = [entry["InstanceId"] for entry in reply["Instances"]]
    wait_for(lambda: len(find(rig, "instance-state-name", "running")) >= 12, "12 run")
    yield ids
    rig.ec2.terminate_instances(InstanceIds=ids)


def test_a_paginator_gives_every_instance_once(rig, twelve):
    paginator = rig.ec2.get_paginator("describe_instances")
    pages = list(
        paginator.paginate(
            Filters=[{"Name": "tag:Name", "Values": ["paged"]}], PaginationConfig={"PageSize": 5}
        )
    )
    sizes = [sum(len(entry["Instances"]) for entry in page["Reservations"]) for page in pages]
    assert sizes == [5, 5, 2]
    ids = [i["InstanceId"] for page in pages for entry in page["Reservations"] for i in entry["Instances"]]
    assert sorted(ids) == sorted(twelve)


@pytest.mark.usefixtures("twelve")
@pytest.mark.parametrize(
    ("operation", "key", "size"),
    [
        ("describe_instance_status", "InstanceStatuses", 5),
        ("describe_instance_types", "InstanceTypes", 100),
        ("describe_images", "Images", 2),
        ("describe_volumes", "Volumes", 5),
        ("describe_network_interfaces", "NetworkInterfaces", 5),
        ("describe_spot_price_history", "SpotPriceHistory", 50),
        ("describe_tags", "Tags", 5),
        ("describe_subnets", "Subnets", 5),
    ],
)
def test_lists_come_in_pages(rig, operation, key, size):
    pages = list(rig.ec2.get_paginator(operation).paginate(PaginationConfig={"PageSize": size}))
    items = [item for page in pages for item in page[key]]
    assert len(items) <= size or len(pages) > 1
    assert all(len(page[key]) <= size for page in pages)
    assert len({str(item) for item in items}) == len(items)


def test_wrong_pages_are_refused(rig, twelve):
    with refused("InvalidParameterValue"):
        rig.ec2.describe_instances(MaxResults=1)
    with refused("InvalidNextToken"):
        rig.ec2.describe_instances(MaxResults=5, NextToken="wrong")
    with refused("InvalidNextToken"):
        rig.ec2.describe_volumes(MaxResults=5, NextToken="wrong")
    with refused("InvalidParameterCombination"):
        rig.ec2.describe_instances(MaxResults=5, InstanceIds=twelve)
