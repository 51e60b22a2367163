"""What is refused before anything is created: a quota that is too small, a type that AWS has retired."""

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
