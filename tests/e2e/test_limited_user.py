"""The commands as an IAM user that has the policies of `templates/` and nothing else."""

import json
from pathlib import Path

import pytest
from terminal import User

from dlcloud.elastic.agents import PACKAGE
from dlcloud.local.site import ENDPOINT_VARIABLE, KEY_ID_VARIABLE, SECRET_VARIABLE
from dlcloud.resources.texts import iam_policy
from tests.environments import python_with

RECIPE = """
name: limited
cloud: local
instances: {types: [c5.xlarge, c6i.xlarge], market: spot-then-on-demand, count: {min: 1, max: 2}}
workload:
  command: 'echo "images/sec: 5"'
  throughput: 'images/sec: ([0-9.]+)'
  unit: images
  repeats: 1
"""
TRAINING = """
name: trained
cloud: local
instances: {types: [c5.xlarge], market: spot, on_demand_base: 1, count: {min: 1, max: 2}}
workload:
  command: python3 -m trainer.examples.digits --epochs 1
  elastic: {checkpoint_seconds: 30, leave_seconds: 4}
"""


@pytest.fixture(scope="module")
def limited(user: User, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that makes an IAM user with some policies, in a home of its own."""
    endpoint = user.json("local", "status")["result"]["url"]

    def make(name: str, *policies: str) -> User:
        user.aws("iam", "create-user", "--user-name", name)
        for policy in policies:
            words = ("--user-name", name, "--policy-name", Path(policy).stem)
            document = json.dumps(json.loads(iam_policy(policy)))
            user.aws("iam", "put-user-policy", *words, "--policy-document", document)
        key = user.aws("iam", "create-access-key", "--user-name", name)["AccessKey"]
        variables = {ENDPOINT_VARIABLE: endpoint}
        variables |= {KEY_ID_VARIABLE: key["AccessKeyId"], SECRET_VARIABLE: key["SecretAccessKey"]}
        return User(tmp_path_factory.mktemp(name), variables=variables)

    return make


def test_a_user_with_the_policy_does_a_whole_life(user, limited):
    someone = limited("someone", "iam_policy.json")
    (someone.home / "recipe.yaml").write_text(RECIPE)
    someone.run("doctor", "recipe.yaml", "--cloud", "local")
    someone.run("up", "recipe.yaml", "--keep", "--name", "x")
    someone.run("exec", "x", "--", "true")
    someone.run("resize", "x", "1")
    someone.run("resize", "x", "2")
    assert len(user.alive()) == 2
    someone.run("bench", "--recipe", "recipe.yaml", "-i", "c5.xlarge", "--spot", "--yes")
    someone.run("gc", "--cloud", "local")
    someone.run("down", "x")
    assert user.alive() == []
    (someone.home / "training.yaml").write_text(TRAINING)
    denied = someone.run("up", "training.yaml", "--detach", expect=3)
    assert "iam:" in denied.stderr
    assert "AccessDenied" in denied.stderr
    assert user.alive() == []


STORED = """
name: stored
cloud: local
instances: {types: [c5.xlarge], market: spot, on_demand_base: 1}
data:
  - {from: s3://limited-data/set, to: data/set}
checkpoints: s3://limited-data/runs/one
workload:
  command: python3 -m trainer.examples.digits --epochs 1
  elastic: {checkpoint_seconds: 30, leave_seconds: 4}
"""
READS = """
name: reads
cloud: local
instances: {types: [c5.xlarge]}
data: [{from: s3://limited-data/set, to: data/set}]
workload: {command: cat data/set/one.csv, repeats: 1}
"""


@pytest.fixture(scope="module")
def bucket(user):
    s3 = user.client("s3")
    s3.create_bucket(Bucket="limited-data")
    s3.put_object(Bucket="limited-data", Key="set/one.csv", Body=b"1,2,3\n")
    return s3


@pytest.mark.usefixtures("bucket")
def test_data_and_checkpoints_are_denied_before_anything_is_launched(user, limited):
    bare = limited("bare", "iam_policy.json")
    (bare.home / "recipe.yaml").write_text(STORED)
    assert "s3:ListBucket" in bare.run("up", "recipe.yaml", "--dry-run", expect=3).stderr
    lister = limited("listing", "iam_policy.json", "iam_policy_storage.json")
    (lister.home / "recipe.yaml").write_text(STORED)
    denied = lister.run("up", "recipe.yaml", expect=3).stderr
    assert "iam:CreateRole" in denied
    assert "launching" not in denied
    assert lister.json("status")["result"]["records"] == []
    (lister.home / "reads.yaml").write_text(READS)
    denied = lister.run("bench", "--recipe", "reads.yaml", "--yes", expect=None).stderr
    assert "iam:CreateRole" in denied
    assert "launching" not in denied
    assert user.alive() == []


@pytest.mark.long
def test_a_user_leaves_a_training_with_its_bucket_to_itself(user, limited, bucket):
    policies = ("iam_policy.json", "iam_policy_detach.json", "iam_policy_storage.json")
    someone = limited("other", *policies)
    (someone.home / "recipe.yaml").write_text(STORED)
    python_with(PACKAGE / "requirements" / "elastic.txt")  # the instances find it built
    someone.run("up", "recipe.yaml", "--detach", "--name", "y")
    assert "checkpoint" in someone.run("logs", "y", "--follow").stdout
    listed = bucket.list_objects_v2(Bucket="limited-data", Prefix="runs/one/manifest-")
    assert listed["KeyCount"] > 0
    someone.run("status", "y")
    someone.run("down", "y")
    assert user.alive() == []
    assert user.client("iam").list_roles(PathPrefix="/dlcloud/")["Roles"] == []
    assert user.client("iam").list_instance_profiles(PathPrefix="/dlcloud/")["InstanceProfiles"] == []


PRIVATE = """
name: private
cloud: local
instances:
  types: [c7i.xlarge]
  count: {min: 1, max: 2}
  market: on-demand
  zones: us-east-1b
  profile: pulls
  MORE
network: {subnets: SUBNET, access: instance-connect-endpoint, public_ip: false}
workload: {command: 'echo "images/sec: 5"', throughput: 'images/sec: ([0-9.]+)', repeats: 1}
"""


@pytest.mark.long
def test_a_user_launches_into_what_the_account_owns(user, limited):
    """A private subnet behind an endpoint, a reservation, a placement group, and a role for ECR."""
    ec2, iam = user.ec2, user.client("iam")
    vpc_id = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc_id, CidrBlock="10.9.1.0/24", AvailabilityZone="us-east-1b")
    subnet_id = made["Subnet"]["SubnetId"]
    ec2.create_instance_connect_endpoint(SubnetId=subnet_id)
    reserved = ec2.create_capacity_reservation(
        InstanceType="c7i.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1b",
        InstanceCount=1,
    )
    reservation_id = reserved["CapacityReservation"]["CapacityReservationId"]
    iam.create_role(RoleName="pulls", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="pulls")
    iam.add_role_to_instance_profile(InstanceProfileName="pulls", RoleName="pulls")
    recipe = PRIVATE.replace("SUBNET", subnet_id)
    grouped = recipe.replace("MORE", "placement_group: cluster")
    reserved = recipe.replace("MORE", f"reservations: {reservation_id}")
    without = limited("outside", "iam_policy.json")
    (without.home / "recipe.yaml").write_text(grouped)
    denied = without.run("up", "recipe.yaml", expect=3)
    assert "iam:PassRole on arn:aws:iam::123456789012:role/pulls is denied" in denied.stderr
    missing = without.json("doctor", "recipe.yaml", "--cloud", "local", expect=3)["result"][
        "missing_statements"
    ]
    someone = limited("inside", "iam_policy.json", "iam_policy_private.json")
    document = json.dumps({"Version": "2012-10-17", "Statement": missing})
    iam.put_user_policy(UserName="inside", PolicyName="pulls", PolicyDocument=document)
    (someone.home / "recipe.yaml").write_text(grouped)
    someone.run("up", "recipe.yaml", "--keep", "--name", "grouped")
    someone.run("exec", "grouped", "--", "true")
    someone.run("down", "grouped")
    assert ec2.describe_placement_groups()["PlacementGroups"] == []
    (someone.home / "recipe.yaml").write_text(reserved)
    someone.run("up", "recipe.yaml")
    assert user.alive() == []


SWEEP = """
name: swept
cloud: local
instances: {types: [c5.xlarge], count: {min: 1, max: 1}}
workload: {command: 'echo "score $DLCLOUD_VALUE_X"', facts: {score: 'score (.*)'}}
experiment: {list: [{x: 3}, {x: 4}], metric: score}
results: s3://limited-sweeps/mine
"""


@pytest.mark.long
def test_a_user_lets_aws_batch_hold_the_queue(user, limited):
    someone = limited("queuer", "iam_policy.json", "iam_policy_detach.json", "iam_policy_batch.json")
    user.client("s3").create_bucket(Bucket="limited-sweeps")
    (someone.home / "sweep.yaml").write_text(SWEEP)
    done = someone.run("up", "sweep.yaml", "--on", "batch")
    assert "2 of 2 trials have a result" in done.stdout
    assert "warning" not in done.stderr
    someone.run("gc", "--cloud", "local")
    batch = user.client("batch")
    assert batch.describe_compute_environments()["computeEnvironments"] == []
    assert user.alive() == []
