"""The commands as an IAM user that has the policies of `templates/` and nothing else."""

import json
from pathlib import Path

import pytest
from terminal import User

from dlcloud.elastic.program import PACKAGE
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
    someone.run("doctor", "recipe.yaml")
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


def test_a_user_with_both_policies_leaves_a_training_to_itself(user, limited):
    someone = limited("other", "iam_policy.json", "iam_policy_detach.json")
    (someone.home / "recipe.yaml").write_text(TRAINING)
    python_with(PACKAGE / "requirements" / "elastic.txt")  # the instances find it built
    someone.run("up", "recipe.yaml", "--detach", "--name", "y")
    someone.run("logs", "y", "--follow")
    someone.run("down", "y")
    assert user.alive() == []
