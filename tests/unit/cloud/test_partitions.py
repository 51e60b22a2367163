"""Partitions are those of botocore's endpoint data; nothing names one by hand."""

import json
import re
from pathlib import Path

import pytest

import dlcloud
from dlcloud.cloud.api.partitions import partition_of, service_region
from dlcloud.resources.texts import control_policy, iam_policy

ROOT = Path(dlcloud.__file__).parents[1]


@pytest.mark.parametrize(
    ("region", "name", "principal", "pricing"),
    [
        ("eu-central-1", "aws", "ec2.amazonaws.com", "us-east-1"),
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn", "cn-northwest-1"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com", ""),
        ("il-south-9", "aws", "ec2.amazonaws.com", "us-east-1"),
    ],
)
def test_a_region_says_its_partition(region, name, principal, pricing):
    partition = partition_of(region)
    assert (partition.name, partition.ec2_principal) == (name, principal)
    assert service_region("api.pricing", region, "us-east-1") == pricing


@pytest.mark.parametrize("name", ["iam_policy.json", "iam_policy_detach.json", "iam_policy_secrets.json"])
def test_a_policy_of_china_names_nothing_of_another_partition(name):
    china = partition_of("cn-north-1")
    text = iam_policy(name, partition=china.name, dns_suffix=china.dns_suffix)
    arns = re.findall(r'"arn:([^:]+):', text + control_policy("c0ffee", "cn-north-1", china.name))
    assert set(arns) == {"aws-cn"}
    assert "@" not in text
    json.loads(text)


def test_no_source_names_the_commercial_partition_in_an_arn():
    sources = [*(ROOT / "dlcloud").rglob("*.py"), *filter(Path.is_file, (ROOT / "templates").iterdir())]
    # The local EC2 is of that partition.
    named = [path for path in sources if "arn:aws:" in path.read_text()]
    assert [path for path in named if "local" not in path.parts] == []
