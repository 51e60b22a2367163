"""Two IAM users in one account, each with an attached and a detached cluster: neither touches the other's."""

import pytest
from terminal import User

from dlcloud.elastic.agents import PACKAGE
from dlcloud.local.site import ENDPOINT_VARIABLE, KEY_ID_VARIABLE, SECRET_VARIABLE
from dlcloud.resources.texts import iam_policy
from tests.environments import python_with

KEPT = """
name: kept
cloud: local
instances: {types: [c5.xlarge]}
workload: {command: 'echo "images/sec: 5"', throughput: 'images/sec: ([0-9.]+)', unit: images, repeats: 1}
"""
TRAINING = """
name: training
cloud: local
instances: {types: [c7i.xlarge], count: 1, market: on-demand}
workload:
  command: python3 -m trainer.examples.digits --epochs 2000 --delay-ms 500
  elastic: {checkpoint_seconds: 10, leave_seconds: 4}
"""
GC = ("gc", "--cloud", "local", "--region", "us-east-1", "--yes")


def person(user: User, home, name: str) -> User:
    """Return an IAM user with dlcloud's policies, who has an attached and a detached cluster up."""
    endpoint = user.json("local", "status")["result"]["url"]
    user.aws("iam", "create-user", "--user-name", name)
    for policy in ("iam_policy.json", "iam_policy_detach.json"):
        words = ("--user-name", name, "--policy-name", policy, "--policy-document", iam_policy(policy))
        user.aws("iam", "put-user-policy", *words)
    key = user.aws("iam", "create-access-key", "--user-name", name)["AccessKey"]
    variables = {ENDPOINT_VARIABLE: endpoint}
    variables |= {KEY_ID_VARIABLE: key["AccessKeyId"], SECRET_VARIABLE: key["SecretAccessKey"]}
    made = User(home, variables=variables)
    for recipe, text in (("kept.yaml", KEPT), ("training.yaml", TRAINING)):
        (home / recipe).write_text(text)
    made.run("up", "kept.yaml", "--keep", "--name", f"kept-{name}")
    made.run("up", "training.yaml", "--detach", "--name", f"left-{name}")
    return made


@pytest.fixture
def people(user: User, tmp_path_factory: pytest.TempPathFactory) -> dict[str, User]:
    python_with(PACKAGE / "requirements" / "elastic.txt")  # the instances find it built
    return {name: person(user, tmp_path_factory.mktemp(name), name) for name in ("anna", "ben")}


def clusters_of(user: User, *options: str) -> set[str]:
    return {record["cluster"] for record in user.json("status", *options)["result"]["records"]}


@pytest.mark.long
def test_neither_of_two_people_touches_what_the_other_left_running(user, people):
    instances = user.alive()
    assert len(instances) == 4
    for name, other in (("anna", "ben"), ("ben", "anna")):
        someone = people[name]
        assert clusters_of(someone, "--everywhere") == {f"kept-{name}", f"left-{name}"}
        for cluster in (f"kept-{other}", f"left-{other}"):
            for command in (("down", cluster), ("resize", cluster, "2"), ("exec", cluster, "--", "true")):
                refused = someone.run(*command, expect=2)
                assert f"no cluster {cluster} is up" in refused.stderr, command
        someone.run(*GC)
        assert sorted(user.alive()) == sorted(instances), f"gc of {name} ended something"
    # Everything of Anna's goes, and nothing of Ben's.
    anna, ben = people["anna"], people["ben"]
    anna.run("down", "--all", "--yes", "--discard")
    assert clusters_of(ben, "--everywhere") == {"kept-ben", "left-ben"}
    assert len(user.alive()) == 2
    assert ben.run("logs", "left-ben").stdout, "its training goes on"
    ben.run("down", "--all", "--yes", "--discard")
    assert user.alive() == []
    assert user.aws("iam", "list-roles", "--path-prefix", "/dlcloud/")["Roles"] == []
