"""DescribeInstances and other lists as clients of EC2 read them: filters, wildcards, pages, and their XML."""

import boto3
import pytest
import xmltodict
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionContext, ActionResult
from moto.core.serialize import EC2Serializer
from moto.core.utils import get_service_model
from moto.ec2 import ec2_backends
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses import EC2Response

from dlcloud.local.ec2.differences import INSTANCE_FILTERS, STATUS_FILTERS, Answer, _Serializer
from tests.fakes.local_ec2 import refused, wait_for


def find(rig, name, *values):
    reply = rig.ec2.describe_instances(Filters=[{"Name": name, "Values": list(values)}])
    return [i["InstanceId"] for entry in reply["Reservations"] for i in entry["Instances"]]


def statuses(rig, name, value):
    reply = rig.ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])
    return [status["InstanceId"] for status in reply["InstanceStatuses"]]


def test_every_filter_finds_the_instance_by_the_value_that_is_shown(rig):
    rig.ec2.import_key_pair(KeyName="filtered", PublicKeyMaterial=rig.public_key.encode())
    instance = rig.up(
        InstanceType="c5.4xlarge",
        KeyName="filtered",
        ClientToken="token-of-filters",
        InstanceMarketOptions={"MarketType": "spot"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "filtered*1"}]}],
    )
    instance_id, launched = instance["InstanceId"], instance["LaunchTime"]
    reply = rig.ec2.describe_instances(InstanceIds=[instance_id])
    finding = [
        *(("instance-type", "c5.*"), ("instance-type", "c5.?xlarge"), ("instance-lifecycle", "spot")),
        *(("instance-state-code", "16"), ("client-token", "token-of-filters"), ("key-name", "filter*")),
        *(("tag:Name", "filtered*"), ("tag:Name", r"filtered\*1"), ("tag-key", "Nam?")),
        *(("tag-value", "filtered*"), ("root-device-name", "/dev/sda1"), ("tenancy", "default")),
        *(("spot-instance-request-id", "sir-*"), ("metadata-options.http-tokens", "*")),
        *(("availability-zone-id", "use1-az*"), ("launch-time", f"{launched:%Y-%m-%d}T*")),
        ("launch-time", f"{launched:%Y-%m-%dT%H:%M:%S}.000Z"),
        ("reservation-id", reply["Reservations"][0]["ReservationId"]),
        ("image-id", instance["ImageId"]),
        ("vpc-id", instance["VpcId"]),
        ("subnet-id", instance["SubnetId"]),
        ("private-dns-name", instance["PrivateDnsName"]),
        ("dns-name", instance["PublicDnsName"]),
        ("ip-address", instance["PublicIpAddress"]),
        ("private-ip-address", instance["PrivateIpAddress"]),
        ("instance.group-id", instance["NetworkInterfaces"][0]["Groups"][0]["GroupId"]),
    ]
    for name, value in finding:
        assert find(rig, name, value) == [instance_id], name
    assert statuses(rig, "instance-status.status", "ok") == [instance_id]
    for name in INSTANCE_FILTERS:
        assert find(rig, name, "other") == []
    for name in STATUS_FILTERS:
        assert statuses(rig, name, "other") == []
    with refused("UnsupportedOperation"):
        find(rig, "no-such-filter", "x")
    with refused("UnsupportedOperation", ".*outpost-arn"):
        rig.ec2.describe_subnets(Filters=[{"Name": "outpost-arn", "Values": ["x"]}])
    # Filters are joined by "and", and their values by "or".
    filters = [{"Name": "instance-type", "Values": ["m5.large", "c5.*"]}]
    for tag, ids in (("filtered*", [instance_id]), ("absent", [])):
        named = {"Name": "tag:Name", "Values": [tag]}
        reservations = rig.ec2.describe_instances(Filters=[*filters, named])["Reservations"]
        assert [one["Instances"][0]["InstanceId"] for one in reservations] == ids


@pytest.fixture(scope="module")
def twelve(rig):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "paged"}]}]
    ids = rig.run(12, InstanceType="c6i.large", TagSpecifications=tags, UserData="")
    wait_for(lambda: len(find(rig, "instance-state-name", "running")) >= 12, "12 run")
    yield ids
    rig.ec2.terminate_instances(InstanceIds=ids)


def test_a_paginator_gives_every_instance_once(rig, twelve):
    paginator, named = (
        rig.ec2.get_paginator("describe_instances"),
        [{"Name": "tag:Name", "Values": ["paged"]}],
    )
    pages = [
        [one["InstanceId"] for entry in page["Reservations"] for one in entry["Instances"]]
        for page in paginator.paginate(Filters=named, PaginationConfig={"PageSize": 5})
    ]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert sorted(one for page in pages for one in page) == sorted(twelve)


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
    for call in (rig.ec2.describe_instances, rig.ec2.describe_volumes):
        with refused("InvalidNextToken"):
            call(MaxResults=5, NextToken="wrong")
    with refused("InvalidParameterCombination"):
        rig.ec2.describe_instances(MaxResults=5, InstanceIds=twelve)


TAGS = {"Name": "<a> & \"b\" 'c'\n", "empty": "", "ä": "\u2028 😀", "blank": " x "}


def serialize(kind, action, result):
    """Return the content of an answer, without its request's id."""
    model = get_service_model("ec2")
    context = ActionContext(model, model.operation_model(action), EC2Serializer, EC2Response())
    status, headers, body = kind(result).execute_result(context)
    content = xmltodict.parse(body, strip_whitespace=False)
    for answer in content.values():
        assert (answer.pop("requestId", None) is None) != (answer.pop("RequestID", None) is None)
    return status, headers, body.partition("\n")[0], content


@pytest.fixture
def backend(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with mock_aws():
        ec2 = boto3.client("ec2", region_name="us-east-1")
        image = ec2.describe_images()["Images"][0]["ImageId"]
        tags = [{"Key": key, "Value": value} for key, value in TAGS.items()]
        instances = ec2.run_instances(
            ImageId=image,
            MinCount=2,
            MaxCount=2,
            InstanceType="c5.large",
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )["Instances"]
        ec2.terminate_instances(InstanceIds=[instances[0]["InstanceId"]])
        yield ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]


def test_answers_are_those_of_motos_serializer(backend):
    results = {
        "DescribeInstances": {"Reservations": list(backend.reservations.values()), "NextToken": None},
        "DescribeInstanceStatus": {"InstanceStatuses": backend.all_instances()},
        "DescribeImages": {"Images": backend.describe_images()},
        "DescribeInstanceTypes": {"InstanceTypes": backend.describe_instance_types()[:50]},
        "DescribeSecurityGroups": {"SecurityGroups": backend.describe_security_groups()},
        "DescribeSubnets": {"Subnets": backend.describe_subnets()},
        "DescribeTags": {"Tags": backend.describe_tags()},
        "DescribeVolumes": {"Volumes": backend.describe_volumes()},
        "DeleteKeyPair": {},
    }
    for action, result in results.items():
        assert serialize(Answer, action, result) == serialize(ActionResult, action, result), action
        known = len(_Serializer._lookups)
        assert serialize(Answer, action, result) == serialize(ActionResult, action, result), action
        assert len(_Serializer._lookups) == known, action


def test_errors_are_those_of_motos_serializer():
    error = InvalidInstanceIdError(["i-<&>"])
    answer = serialize(Answer, "DescribeInstances", error)
    assert answer == serialize(ActionResult, "DescribeInstances", error)
    assert answer[0] == 400
    assert "i-<&>" in answer[3]["Response"]["Errors"]["Error"]["Message"]
