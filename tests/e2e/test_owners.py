"""Two people in one account, each in a home of their own: neither ends, resizes or collects the other's."""

import json

import pytest
from terminal import User

from dlcloud.local.site import ENDPOINT_VARIABLE, KEY_ID_VARIABLE, SECRET_VARIABLE
from dlcloud.resources.texts import iam_policy

RECIPE = """
name: owned
cloud: local
instances: {types: [c5.xlarge]}
workload: {command: 'echo "images/sec: 5"', throughput: 'images/sec: ([0-9.]+)', unit: images, repeats: 1}
"""
GC = ("gc", "--cloud", "local", "--region", "us-east-1")


@pytest.fixture
def people(user: User, tmp_path_factory: pytest.TempPathFactory) -> dict[str, User]:
    """Two IAM users with dlcloud's policy, each of whom keeps a cluster up."""
    endpoint = user.json("local", "status")["result"]["url"]
    found = {}
    for name in ("anna", "ben"):
        user.aws("iam", "create-user", "--user-name", name)
        document = json.dumps(json.loads(iam_policy()))
        words = ("--user-name", name, "--policy-name", "dlcloud", "--policy-document", document)
        user.aws("iam", "put-user-policy", *words)
        key = user.aws("iam", "create-access-key", "--user-name", name)["AccessKey"]
        variables = {ENDPOINT_VARIABLE: endpoint}
        variables |= {KEY_ID_VARIABLE: key["AccessKeyId"], SECRET_VARIABLE: key["SecretAccessKey"]}
        found[name] = User(tmp_path_factory.mktemp(name), variables=variables)
        (found[name].home / "recipe.yaml").write_text(RECIPE)
        found[name].run("up", "recipe.yaml", "--keep", "--name", f"of-{name}")
    return found


def clusters_of(user: User, *options: str) -> set[str]:
    records = user.json("status", *options)["result"]["records"]
    return {record["cluster"] or "of another home" for record in records}


def test_neither_of_two_people_ends_the_others_cluster(user, people):
    anna, ben = people["anna"], people["ben"]
    for someone in (anna, ben, user):
        shown = someone.run(*GC, "--yes")
        assert "of another owner (" in shown.stderr
        assert "left alone, unless --all-owners" in shown.stderr
    assert len(user.alive()) == 2
    assert clusters_of(anna) == {"of-anna"}
    # From here on Anna's looks detached: its own instance carries the mark of a controller.
    (record,) = anna.json("status")["result"]["records"]
    mark = "Key=dlcloud:controller,Value=ubuntu"
    user.aws("ec2", "create-tags", "--resources", record["instance_id"], "--tags", mark)
    assert clusters_of(ben, "--everywhere") == {"of-ben"}
    assert clusters_of(ben, "--everywhere", "--all-owners") == {"of-ben", "of-anna"}
    for command in (("down", "of-anna"), ("resize", "of-anna", "2"), ("exec", "of-anna", "--", "true")):
        assert "no cluster of-anna is up" in ben.run(*command, expect=2).stderr
    ben.run(*GC, "--all-owners", "--yes")
    assert len(user.alive()) == 2, "its own instance controls it"
    ended = ben.run("down", "of-anna", "--all-owners", "--discard", "--yes")
    assert "of-anna is of another owner (" in ended.stderr
    ben.run("down", "of-ben")
    assert user.alive() == []
