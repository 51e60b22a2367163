"""Answers as other clients than boto3 read them: Libcloud, Ansible, SkyPilot."""

import pytest

from dlcloud.local.ec2.mends import mend

NAMESPACE = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'


@pytest.fixture
def texts(rig):
    """The answers of EC2 as they came."""
    answers = []
    rig.ec2.meta.events.register("after-call", lambda http_response, **_: answers.append(http_response.text))
    return answers


def test_answers_have_the_namespace_an_id_and_a_return_value(rig, texts):
    group = rig.ec2.create_security_group(GroupName="x", Description="x")["GroupId"]
    rig.ec2.delete_security_group(GroupId=group)
    assert all(f"Response {NAMESPACE}>" in text for text in texts)
    assert "<return>true</return>" in texts[-1]
    assert "request-id" not in "".join(texts)


def test_errors_have_an_id_and_no_namespace(rig, texts):
    with pytest.raises(rig.ec2.exceptions.ClientError):
        rig.ec2.describe_vpcs(VpcIds=["vpc-1"])
    assert "<Response><Errors><Error><Code>InvalidVpcID.NotFound</Code>" in texts[-1]
    assert "request-id" not in texts[-1]


def test_an_answer_with_members_stays_as_it_is():
    body = b"<XResponse><requestId>1</requestId><x/></XResponse>"
    assert mend(body) == body


def test_managed_policies_are_there(rig):
    """SkyPilot attaches some of them before it launches."""
    iam = rig.client("iam")
    iam.create_role(RoleName="managed", AssumeRolePolicyDocument='{"Version": "2012-10-17", "Statement": []}')
    arn = "arn:aws:iam::aws:policy/AmazonEC2FullAccess"
    iam.attach_role_policy(RoleName="managed", PolicyArn=arn)
    assert iam.get_policy(PolicyArn=arn)["Policy"]["PolicyName"] == "AmazonEC2FullAccess"
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.attach_role_policy(RoleName="managed", PolicyArn="arn:aws:iam::aws:policy/None")
