"""Two accounts of one local EC2: neither lists or changes what belongs to the other."""

from functools import partial

import pytest
from botocore.exceptions import ClientError

OTHER = "222222222222"


@pytest.fixture(scope="module")
def other(rig):
    """Make clients with the access key of another account."""
    return partial(rig.client, key=rig.control.add_account(OTHER))


def listed(ec2, **filters):
    reservations = ec2.describe_instances(**filters)["Reservations"]
    return [instance["InstanceId"] for reservation in reservations for instance in reservation["Instances"]]


def test_each_caller_learns_the_own_account(rig, other):
    assert rig.client("sts").get_caller_identity()["Account"] == "123456789012"
    identity = other("sts").get_caller_identity()
    assert (identity["Account"], identity["Arn"].split(":")[4]) == (OTHER, OTHER)


def test_an_account_neither_lists_nor_ends_instances_of_another(rig, other):
    instance = rig.up()
    instance_id, theirs = instance["InstanceId"], other("ec2")
    assert listed(theirs) == []
    for call in (theirs.describe_instances, theirs.terminate_instances):
        with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
            call(InstanceIds=[instance_id])
    with pytest.raises(ClientError, match="EC2InstanceNotFoundException"):
        other("ec2-instance-connect").send_ssh_public_key(
            InstanceId=instance_id, InstanceOSUser="ubuntu", SSHPublicKey=rig.public_key
        )
    assert rig.state(instance_id) == "running"
    (own,) = theirs.run_instances(
        ImageId=instance["ImageId"], InstanceType="c7i.large", MinCount=1, MaxCount=1
    )["Instances"]
    assert listed(theirs) == [own["InstanceId"]]
    assert own["InstanceId"] not in listed(rig.ec2)
    theirs.terminate_instances(InstanceIds=[own["InstanceId"]])


def test_security_groups_and_roles_are_of_their_account(rig, other):
    rig.ec2.create_security_group(GroupName="ours", Description="ours")
    rig.client("iam").create_role(RoleName="ours", AssumeRolePolicyDocument="{}")
    groups = other("ec2").describe_security_groups()["SecurityGroups"]
    assert "ours" not in {group["GroupName"] for group in groups}
    assert "ours" not in {role["RoleName"] for role in other("iam").list_roles()["Roles"]}


def test_no_header_makes_a_caller_another_account(other):
    sts = other("sts")

    def add_header(request, **_):
        request.headers["x-moto-account-id"] = "123456789012"

    sts.meta.events.register("before-send", add_header)
    assert sts.get_caller_identity()["Account"] == OTHER
