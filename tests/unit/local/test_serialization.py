"""Answers of the local EC2 against moto's own serializer, value by value."""

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

from dlcloud.local.ec2.differences import Answer, _Serializer

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
