"""A cluster belongs to an account: with credentials of another, no command touches it or calls it down."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from terminal import User

from dlcloud.local.site import ENDPOINT_VARIABLE, KEY_ID_VARIABLE, SECRET_VARIABLE, TOKEN_VARIABLE

OURS, THEIRS = "123456789012", "222222222222"
REFUSED = [
    "status ours",
    "down ours",
    "down ours --discard --yes",
    "down",
    "down --all",
    "down --all --yes --discard",
    "resize ours 2",
    "resize ours 1",
    "exec ours -- touch /tmp/touched",
    "exec ours -i 1 -- true",
    "ssh ours --print",
    "ssh ours -- true",
    "ssh ours -L 8080",
    "ssh --config ours",
    "tunnel ours 1",
    "up recipe.yaml --name ours --yes",
    "up recipe.yaml --name ours --dry-run",
    "up recipe.yaml --name ours --keep",
]
SEEN = ["status", "status --all", "gc --cloud local --region us-east-1 --yes", "cost-report"]
RECIPE = """
name: kept
cloud: local
instances: {types: [c5.xlarge], count: {min: 1, max: 2}}
workload: {command: 'echo "images/sec: 5"', throughput: 'images/sec: ([0-9.]+)', unit: images, repeats: 1}
"""


@pytest.fixture(scope="module")
def stranger(user: User) -> User:
    """Keep a cluster up; return the same person in the same home with the keys of another account."""
    (user.home / "recipe.yaml").write_text(RECIPE)
    user.run("up", "recipe.yaml", "--keep", "--name", "ours")
    key_id, secret = user.control.add_account(THEIRS)
    variables = {
        ENDPOINT_VARIABLE: user.control.url,
        TOKEN_VARIABLE: user.control.token,
        KEY_ID_VARIABLE: key_id,
        SECRET_VARIABLE: secret,
    }
    return User(user.home, variables=variables)


def state_of(user: User) -> object:
    """Return what a wrong command could have changed: instances, rules, keys, and what the store holds."""
    groups = user.ec2.describe_security_groups()["SecurityGroups"]
    rules = sorted((group["GroupName"], str(group["IpPermissions"])) for group in groups)
    keys = sorted(path.name for path in (user.home / ".dlcloud" / "clusters").rglob("*") if path.is_file())
    records = user.json("status", "ours")["result"]["records"]
    return user.alive(), rules, keys, [(r["instance_id"], r["state"], r["cluster_state"]) for r in records]


def test_twenty_commands_from_another_account_change_nothing(user, stranger):
    before = state_of(user)
    for words in REFUSED:
        done = stranger.run(*words.split(), expect=None)
        text = done.stdout + done.stderr
        assert done.returncode == 3, (words, text)
        flat = " ".join(done.stderr.split())
        assert f"ours belongs to account {OURS}" in flat, (words, text)
        assert f"of account {THEIRS}" in flat, (words, text)
        assert "AWS_PROFILE" in flat, (words, text)
        assert "down" not in done.stdout, (words, text)
    for words in SEEN:
        done = stranger.run(*words.split())
        assert "terminated" not in done.stdout, (words, done.stdout)
        assert not re.search(r"\bdown\b", done.stdout), (words, done.stdout)
    assert state_of(user) == before


def test_a_home_of_an_earlier_version_gets_the_account_at_its_next_contact(user, stranger):
    user.store("UPDATE clusters SET account = '', partition = '', aws_profile = ''")
    refused = stranger.run("down", "ours", expect=3)
    flat = " ".join(refused.stderr.split())
    assert f"of account {THEIRS}, in which EC2 lists none of its instances" in flat
    user.run("resize", "ours", "1")
    assert user.store("SELECT account, partition FROM clusters WHERE name = 'ours'") == [(OURS, "aws")]
    assert "ours belongs to account" in " ".join(stranger.run("down", "ours", expect=3).stderr.split())


@pytest.mark.usefixtures("stranger")
def test_down_from_the_right_account_still_works(user):
    assert "down" in user.run("down", "ours").stdout
    assert user.alive() == []


class _Listener(BaseHTTPRequestHandler):
    """Counts what reaches it."""

    requests = 0

    def handle_one_request(self) -> None:
        if self.rfile.readline():
            type(self).requests += 1
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def listener():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Listener.requests = 0
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_commands_with_cloud_aws_do_not_follow_a_configured_endpoint(user, listener):
    """The profile's endpoints lead to the local EC2, and nothing goes where the environment points."""
    endpoint = user.json("local", "status")["result"]["environment"]
    services = ["ec2", "sts", "ssm", "pricing", "iam", "s3", "service-quotas", "freetier", "ce"]
    named = ", ".join(f'{service}: "{endpoint["AWS_ENDPOINT_URL"]}"' for service in services)
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    role = user.client("iam").create_role(
        RoleName="Launcher",
        AssumeRolePolicyDocument=json.dumps({"Statement": trust}),
    )["Role"]["Arn"]
    config = user.home / "config.yaml"
    config.write_text(
        f"profiles:\n  private: {{endpoints: {{{named}}}}}\n"
        f"  assumed: {{role: '{role}', endpoints: {{{named}}}}}\n"
    )
    variables = {
        **endpoint,
        "AWS_ENDPOINT_URL": listener,
        "AWS_ENDPOINT_URL_STS": listener,
        "AWS_ENDPOINT_URL_EC2": listener,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "DLCLOUD_CONFIG": str(config),
    }
    someone = User(user.home, variables=variables)
    (user.home / "aws.yaml").write_text(RECIPE.replace("cloud: local", "cloud: aws"))
    user.control.reset_calls()
    someone.run(
        "up", "aws.yaml", "--dry-run", "--profile", "private", "--cidr", "203.0.113.7/32", expect=None
    )
    someone.run("gc", "--cloud", "aws", "--region", "us-east-1", "--profile", "assumed", expect=None)
    calls = user.control.calls()
    assert calls["GetCallerIdentity"] >= 1
    assert calls["AssumeRole"] == 1
    assert _Listener.requests == 0
