"""What IAM policies allow, as far as the local EC2 reads them."""

import json

import pytest

from dlcloud.local.api.policy import AccessRequest, is_allowed

MINE = {"StringEquals": {"aws:ResourceTag/team": "a"}}


def policy(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action="ec2:*", resource="*", **other):
    return {"Effect": "Allow", "Action": action, "Resource": resource, **other}


def deny(**other):
    return {**allow(), "Effect": "Deny", **other}


def request(action="ec2:TerminateInstances", resource="arn:aws:ec2:r:1:instance/i-1", **context):
    return AccessRequest(action=action, resource=resource, context=context or {"aws:ResourceTag/team": ["a"]})


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([], False),
        ([allow()], True),
        ([allow("EC2:terminateinstances")], True),
        ([allow("ec2:Terminate")], False),
        ([allow(["ec2:Run*", "ec2:Terminate??stances"])], True),
        ([allow(resource="arn:aws:ec2:*:*:instance/*")], True),
        ([allow(resource="arn:aws:ec2:*:*:volume/*")], False),
        ([allow(Condition=MINE)], True),
        ([allow(Condition={"StringEquals": {"AWS:ResourceTag/Team": ["b", "a"]}})], True),
        ([allow(Condition={"StringEquals": {"aws:ResourceTag/team": "b"}})], False),
        ([allow(Condition={"StringEquals": {"aws:RequestTag/team": "a"}})], False),
        ([allow(Condition={"StringLike": {"aws:ResourceTag/team": "?"}})], True),
        ([allow(Condition={**MINE, "IpAddress": {"aws:SourceIp": "::/0"}})], False),
        ([allow(), deny(Condition=MINE)], False),
        ([allow(), deny(Condition={"StringEquals": {"aws:ResourceTag/team": "b"}})], True),
        ([allow(), deny(Condition={"IpAddress": {"aws:SourceIp": "::/0"}})], False),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], False),
    ],
)
def test_a_statement_applies_where_action_resource_and_conditions_do(statements, allowed):
    assert is_allowed([policy(*statements)], request()) is allowed


def test_for_all_values_holds_where_there_are_none():
    only = {"ForAllValues:StringEquals": {"aws:TagKeys": ["x", "y"]}}
    document = policy(allow(Condition=only))
    assert is_allowed([document], request())
    assert is_allowed([document], request(**{"aws:TagKeys": ["y"]}))
    assert not is_allowed([document], request(**{"aws:TagKeys": ["y", "z"]}))


def test_policies_add_up_and_one_denial_counts_for_all():
    assert is_allowed([policy(allow("s3:*")), policy(allow())], request())
    assert not is_allowed([policy(allow()), policy(deny())], request())


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"Statement": 1}', '{"Statement": ["x"]}'])
def test_a_broken_policy_allows_nothing(broken):
    assert not is_allowed([broken], request())
    assert is_allowed([broken, policy(allow())], request())
