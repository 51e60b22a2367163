"""What is refused before anything is created: a small quota, a retired type, what a Free plan lacks."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest
from terminal import TIMEOUT_S, wait_until

QUOTA = """
name: limited
cloud: local
instances: {types: [c5.xlarge], count: {min: 2, max: 3}}
workload: {command: 'true', repeats: 1}
"""
RETIRED = """
name: article
region: us-east-1
instances: {types: [p3.2xlarge], image: IMAGE}
workload: {command: 'true'}
"""
IMAGE = "ami-1e749f67"  # an Ubuntu that moto knows


def open_default_network(url: str) -> None:
    """Give the default VPC the way to the internet that AWS's has, and moto's lacks."""
    ec2 = boto3.client(
        "ec2", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.describe_route_tables()["RouteTables"][0]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)


@pytest.fixture
def moto() -> Iterator[str]:
    """AWS as moto plays it, without dlcloud's own local cloud around it: it has no P3 any more, as AWS."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers)
    url = f"http://127.0.0.1:{port}"
    open_default_network(url)
    yield url
    process.terminate()
    process.wait(100)


def test_a_quota_that_is_too_small_is_reported_with_the_increase_needed(newcomer):
    (newcomer.home / "limited.yaml").write_text(QUOTA)
    newcomer.run("local", "start")
    newcomer.run("local", "quota", "c5.xlarge", "4")
    refused = newcomer.run("up", "limited.yaml", expect=3)
    assert "2 of 4 vCPUs are needed" in refused.stderr
    assert "0 of 4 vCPUs in use, 4 left" in refused.stderr
    assert "request-service-quota-increase" in refused.stderr
    assert "--quota-code L-1216C47A --desired-value 12" in refused.stderr
    checked = newcomer.run("doctor", "limited.yaml", "--cloud", "local", expect=3).stdout
    assert "0 of 4 vCPUs" in " ".join(checked.split()), "whatever the width of the terminal"
    newcomer.run("local", "quota", "c5.xlarge", "8")
    newcomer.run("up", "limited.yaml", "--keep", "--name", "two")
    assert len(newcomer.alive()) == 2, "EC2 itself held the quota, and two are enough"
    full = newcomer.run("resize", "two", "3", expect=3)
    assert "8 of 8 vCPUs in use" in full.stderr
    newcomer.run("down", "two")


def test_a_retired_type_is_refused_with_its_successors(newcomer, moto):
    (newcomer.home / "article.yaml").write_text(RETIRED.replace("IMAGE", IMAGE))
    services = ["ec2", "sts", "ssm", "pricing", "iam", "s3", "service-quotas", "freetier", "ce"]
    profile = {"endpoints": dict.fromkeys(services, moto)}
    config = newcomer.home / "config.yaml"
    config.write_text(json.dumps({"default": "moto", "profiles": {"moto": profile}}))
    account = {"DLCLOUD_CONFIG": str(config), "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    done = subprocess.run(
        [*newcomer.command, "up", "article.yaml", "--cidr", "203.0.113.7/32", "--yes"],
        env=newcomer.environment | account,
        cwd=newcomer.home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "p3.2xlarge is left out: AWS has retired it; nearest: g6.xlarge (1x L4, " in done.stderr
    assert "launching" not in done.stderr


GPUS = """
name: gpus
cloud: local
instances: {types: [g5.2xlarge, g4dn.xlarge, p4d.24xlarge], market: spot-then-on-demand}
workload: {command: 'true', repeats: 1}
"""
CPU = """
name: cpu
cloud: local
instances: {types: [TYPES], market: on-demand}
workload: {command: 'true', repeats: 1}
"""
UPGRADE = "aws freetier upgrade-account-plan --region us-east-1 --account-plan-type PAID"


@pytest.fixture
def beginner(newcomer):
    """A user whose account was opened a moment ago: the Free plan, 5 vCPUs, none with GPUs."""
    newcomer.run("local", "start")
    newcomer.run("local", "account-plan", "free")
    for market in ((), ("--spot",)):
        newcomer.run("local", "quota", "c7i.large", "5", *market)
        newcomer.run("local", "quota", "g5.xlarge", "0", *market)
        newcomer.run("local", "quota", "p4d.24xlarge", "0", *market)
    (newcomer.home / "gpus.yaml").write_text(GPUS)
    return newcomer


def words(text):
    """Return a text without the breaks of lines."""
    return " ".join(text.split())


def test_doctor_says_what_is_first_the_least_quota_and_a_type_of_today(beginner):
    asked = beginner.run("doctor", "gpus.yaml", "--cloud", "local", expect=3)
    message = words(asked.stderr)
    first, then, today = (
        message.index(UPGRADE),
        message.index("--quota-code L-3819A6DF --desired-value 4"),
        message.index("today m7i-flex.large"),
    )
    assert first < then < today, "the upgrade first: no quota of the Free plan starts a GPU"
    assert message.count("request-service-quota-increase") == 1, "one, of the smallest type"
    assert "dlcloud up gpus.yaml --type m7i-flex.large" in message
    result = beginner.json("doctor", "gpus.yaml", "--cloud", "local", expect=3)["result"]
    checks = {row["check"]: row for row in result["records"]}
    assert checks["account plan"]["verdict"] == "REFUSED"
    assert "g5.2xlarge, g4dn.xlarge, p4d.24xlarge" in checks["account plan"]["detail"]
    assert result["remedy"] in message


def test_what_doctor_names_starts_and_what_the_plan_refuses_does_not(beginner):
    beginner.run("up", "gpus.yaml", "--type", "m7i-flex.large", "--yes")
    refused = words(beginner.run("up", "gpus.yaml", "--yes", expect=3).stderr)
    assert "an account of AWS's Free plan may not launch it" in refused
    assert UPGRADE in refused
    assert not beginner.alive()


@pytest.mark.long
def test_with_the_paid_plan_the_quota_alone_is_in_the_way(beginner):
    beginner.run("local", "account-plan", "paid")
    message = words(beginner.run("doctor", "gpus.yaml", "--cloud", "local", expect=3).stderr)
    assert UPGRADE not in message
    assert "--desired-value 4" in message
    assert "would start: dlcloud up gpus.yaml --type" in message
    name = message.rpartition("--type ")[2].split()[0]
    beginner.run("up", "gpus.yaml", "--type", name, "--yes")


@pytest.mark.long
def test_where_the_plan_is_not_known_the_refused_launch_says_what_to_do(beginner):
    """Policies of earlier versions do not allow the question; EC2's dry run does not see the Free plan."""
    (beginner.home / "one.yaml").write_text(CPU.replace("TYPES", "c7i.large"))
    (beginner.home / "two.yaml").write_text(CPU.replace("TYPES", "c7i.large, t3.small"))
    beginner.control.add_fault("GetAccountPlanState", "AccessDeniedException", status=403)
    refused = words(beginner.run("up", "one.yaml", "--yes", expect=3).stderr)
    assert "is not eligible for Free Tier" in refused
    assert UPGRADE in refused
    assert not beginner.alive()
    beginner.run("up", "two.yaml", "--yes")


def test_a_bare_type_is_answered_with_the_command_of_a_bundled_recipe(beginner):
    message = words(beginner.run("doctor", "g5.xlarge", "--cloud", "local", expect=3).stderr)
    assert "dlcloud up quickstart --cloud aws --type m7i-flex.large" in message
