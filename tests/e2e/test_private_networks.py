"""Instances without public addresses: through the VPC's endpoint and through a bastion, from up to down."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from terminal import User

from dlcloud.elastic.agents import PACKAGE
from dlcloud.local.site import LocalSite
from dlcloud.ssh.keys import create_key, public_key
from tests.environments import ROOT, python_with
from tests.fakes.local_ec2 import Rig, wait_for
from tests.needs import needs

SILENT_S = 2.0
RECIPE = """\
name: private
cloud: local
instances: {{types: c7i.large, count: {{min: 1, max: 2}}}}
network: {network}
workload: {{command: 'echo "images/sec: 5"', throughput: 'images/sec: ([0-9.]+)'}}
budget: {{max_hours: 1}}
"""


@pytest.fixture(scope="module")
def rig(user: User) -> Rig:
    site = LocalSite(user.home / ".dlcloud" / "local")
    return Rig(site, site.find())


@pytest.fixture(scope="module")
def subnet(rig: Rig) -> str:
    """A VPC of the user's own with one subnet, without public addresses and without a route out."""
    vpc_id = rig.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    tags = [{"ResourceType": "subnet", "Tags": [{"Key": "Name", "Value": "private"}]}]
    made = rig.ec2.create_subnet(
        VpcId=vpc_id, CidrBlock="10.7.1.0/24", AvailabilityZone="us-east-1b", TagSpecifications=tags
    )
    return made["Subnet"]["SubnetId"]


def write(user: User, network: str) -> str:
    (user.home / "private.yaml").write_text(RECIPE.format(network=network))
    return "private.yaml"


def test_a_subnet_without_an_endpoint_is_refused_before_the_launch(user: User, subnet: str):
    path = write(user, f"{{subnets: {subnet}, access: instance-connect-endpoint, public_ip: false}}")
    refused = user.run("up", path, "--yes", expect=3)
    assert "has no EC2 Instance Connect Endpoint" in refused.stderr
    assert f"create-instance-connect-endpoint --subnet-id {subnet}" in refused.stderr
    assert user.alive() == []


@needs("ssh", "scp")
def test_a_cluster_is_reached_through_the_endpoint_alone(user: User, rig: Rig, subnet: str):
    rig.ec2.create_instance_connect_endpoint(SubnetId=subnet)
    network = "{subnets: 'tag:Name=private', access: instance-connect-endpoint, public_ip: false}"
    path = write(user, network)
    checks = {row["check"]: row for row in user.json("doctor", path, "--cloud", "local")["result"]["records"]}
    assert "reached by instance-connect-endpoint" in checks["network"]["detail"]
    assert "no route from" in checks["network"]["detail"]
    plan = " ".join(user.run("up", path, "--dry-run").stdout.split())
    assert f"{subnet} (us-east-1b); no public addresses; reached by instance-connect-endpoint" in plan
    user.run("up", path, "--keep", "--yes", "--name", "x")
    (instance_id, other) = user.alive()
    instance = rig.describe(instance_id)
    assert (instance["SubnetId"], instance.get("PublicIpAddress")) == (subnet, None)
    assert _refuses(instance)
    answers = user.json("exec", "x", "hostname")["result"]["records"]
    assert {answer["instance_id"] for answer in answers} == {instance_id, other}
    first = user.json("ssh", "x", "-i", "1")["result"]
    words = first["command"]
    assert any(word.startswith("ProxyCommand=") and "tunnel" in word for word in words)
    assert_openssh_works(user, first["instance_id"])
    user.run("resize", "x", "1", "--yes")
    user.run("resize", "x", "2", "--yes")
    assert len(user.alive()) == 2
    user.run("logs", "x", expect=None)
    user.run("down", "x")
    assert user.alive() == []
    groups = rig.ec2.describe_security_groups()["SecurityGroups"]
    assert [group["GroupName"] for group in groups if group["GroupName"].startswith("dlcloud-")] == []


@pytest.mark.long
@needs("rsync", "ssh")
def test_rsync_copies_through_the_endpoint(user: User, rig: Rig, subnet: str):
    if not rig.ec2.describe_instance_connect_endpoints()["InstanceConnectEndpoints"]:
        rig.ec2.create_instance_connect_endpoint(SubnetId=subnet)
    network = "{subnets: 'tag:Name=private', access: instance-connect-endpoint, public_ip: false}"
    user.run("up", write(user, network), "--keep", "--yes", "--name", "synced")
    config = user.json("ssh", "synced", "--config")["result"]["file"]
    folder = user.home / "tree"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("content")
    shell = f"ssh -F {config}"
    user.call("rsync", "-a", "-e", shell, f"{folder}/", "synced:synced")
    user.call("rsync", "-a", "-e", shell, "synced:synced/deep/", user.home / "back")
    assert (user.home / "back" / "file").read_text() == "content"
    user.run("down", "synced")


def assert_openssh_works(user: User, instance_id: str) -> None:
    """ssh and scp, by the entries that `ssh --config` wrote, of which none skips the host key."""
    config = user.json("ssh", "x", "--config")["result"]["file"]
    text = Path(config).read_text()
    assert text.count("ProxyCommand") == 2
    assert text.count("StrictHostKeyChecking yes") == 2
    assert user.call("ssh", "-F", config, "x", "echo on $(hostname)").stdout.startswith("on ")
    assert "\non " in "\n" + user.run("ssh", "x", "--", "echo on $(hostname)").stdout
    folder = user.home / "sent"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("content")
    user.call("scp", "-q", "-F", config, folder / "deep" / "file", "x:copied")
    copied = user.call("ssh", "-F", config, instance_id, "cat copied")
    assert (copied.stdout, copied.stderr) == ("content", "")
    hosts = Path(re.search(r"UserKnownHostsFile \"?([^\"\n]+)", text)[1])
    pinned = hosts.read_text()
    hosts.write_text(re.sub(r"ssh-ed25519 \S+", lambda key: other_key(key[0]), pinned))
    refused = user.call("ssh", "-F", config, "x", "true", expect=255)
    assert "Host key verification failed" in refused.stderr
    hosts.write_text(pinned)


def other_key(text: str) -> str:
    """Return a host key that is not this one."""
    return text[:-1] + ("A" if text[-1] != "A" else "E")


@pytest.mark.long
def test_a_cluster_is_reached_through_a_bastion(user: User, rig: Rig, subnet: str, tmp_path):
    create_key(tmp_path / "key")
    data = f"#cloud-config\nssh_authorized_keys:\n  - {public_key(tmp_path / 'key')}\n"
    bastion = rig.up(UserData=data)
    port = next(int(tag["Value"]) for tag in bastion["Tags"] if tag["Key"] == "dlcloud:ssh-port")
    host = bastion["PublicIpAddress"]
    hosts = tmp_path / "known_hosts"
    name = f"[{host}]:{port}" if port != 22 else host
    key = wait_for(lambda: _host_key(bastion), "its host key is known")
    hosts.write_text(f"{name} {key}\n")
    place = {"host": host, "port": port, "key": str(tmp_path / "key"), "known_hosts": str(hosts)}
    network = {"subnets": subnet, "access": "bastion", "public_ip": "false", "bastion": place}
    path = write(user, json.dumps(network))
    user.run("up", path, "--keep", "--yes", "--name", "y")
    assert len(user.json("exec", "y", "hostname")["result"]["records"]) == 2
    hosts.write_text(f"{name} ssh-ed25519 {rig.private_key.get_base64()}\n")
    refused = user.run("exec", "y", "true", expect=4)
    assert "host key" in refused.stderr
    hosts.write_text(f"{name} {key}\n")
    user.run("down", "y")
    rig.ec2.terminate_instances(InstanceIds=[bastion["InstanceId"]])


TRAINING = """\
name: trained
cloud: local
instances: {types: c7i.xlarge, count: 1, market: on-demand}
network: {subnets: 'tag:Name=private', access: instance-connect-endpoint, public_ip: false}
checkpoints: s3://private-runs/one
workload:
  command: python3 -m trainer.examples.digits --epochs 1
  elastic: {checkpoint_seconds: 30, leave_seconds: 4}
budget: {max_hours: 1}
"""


@pytest.mark.long
def test_a_detached_private_training_leaves_its_results_in_a_bucket(user: User, rig: Rig):
    python_with(PACKAGE / "requirements" / "elastic.txt")
    rig.client("s3").create_bucket(Bucket="private-runs")
    (user.home / "trained.yaml").write_text(TRAINING)
    user.run("up", "trained.yaml", "--detach", "--yes", "--name", "z")
    (instance_id,) = user.alive()
    assert rig.describe(instance_id).get("PublicIpAddress") is None
    assert "z" in user.run("status", "z").stdout
    user.run("logs", "z", "--follow")
    rig.ec2.terminate_instances(InstanceIds=[instance_id])  # as its budget does
    rig.await_state(instance_id, "terminated")
    listed = rig.client("s3").list_objects_v2(Bucket="private-runs", Prefix="one/")["Contents"]
    assert {item["Key"].split("/")[1].split("-")[0] for item in listed} == {"finished", "manifest", "step"}
    for command in ("status", "logs"):
        gone = user.run(command, "z", expect=4)
        assert "its checkpoints in s3://private-runs/one" in " ".join(gone.stderr.split())
    user.run("down", "z")
    assert user.json("status")["result"]["records"] == []
    assert "nothing is launched: the last step" in user.run("up", "trained.yaml", "--dry-run").stdout


def _host_key(instance) -> str:
    port = next(int(tag["Value"]) for tag in instance["Tags"] if tag["Key"] == "dlcloud:ssh-port")
    transport = paramiko.Transport((instance["PublicIpAddress"], port))
    try:
        transport.start_client(timeout=60)
        return f"ssh-ed25519 {transport.get_remote_server_key().get_base64()}"
    finally:
        transport.close()


def _refuses(instance) -> bool:
    """True if the instance's SSH server answers no connection that comes from this machine itself."""
    port = next(int(tag["Value"]) for tag in instance["Tags"] if tag["Key"] == "dlcloud:ssh-port")
    try:
        with socket.create_connection((instance["PrivateIpAddress"], port), timeout=SILENT_S) as connected:
            return connected.recv(1) == b""
    except OSError:
        return True


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.long
@needs("bash", "rsync", "scp", "ssh")
def test_the_page_of_networks_runs_where_there_is_its_network(user: User, rig: Rig):
    """Its recipe, with ids for those that it makes up, and its commands as they stand."""
    vpc_id = rig.ec2.create_vpc(
        CidrBlock="10.8.0.0/16", TagSpecifications=[tagged("vpc", "Name", "research")]
    )["Vpc"]["VpcId"]
    zones = {"10.8.1.0/24": "us-east-1a", "10.8.2.0/24": "us-east-1b"}
    first, _ = (
        rig.ec2.create_subnet(
            VpcId=vpc_id,
            CidrBlock=cidr,
            AvailabilityZone=zone,
            TagSpecifications=[tagged("subnet", "tier", "private" if zone[-1] == "b" else "public")],
        )["Subnet"]["SubnetId"]
        for cidr, zone in zones.items()
    )
    rig.ec2.create_instance_connect_endpoint(SubnetId=first)
    group = rig.ec2.create_security_group(GroupName="theirs", Description="x", VpcId=vpc_id)["GroupId"]
    (network,) = blocks("networks", "yaml")
    recipe = RECIPE.partition("network:")[0].format() + network + RECIPE.partition("{network}\n")[2].format()
    (user.home / "page.yaml").write_text(recipe.replace("subnet-0123", first).replace("sg-0456", group))
    user.run("up", "page.yaml", "--keep", "--yes", "--name", "x")
    user.run("exec", "x", "mkdir", "-p", "results")
    user.run("exec", "x", "touch", "results/a.csv")
    (user.home / "model.pt").write_text("weights")
    (commands,) = blocks("networks", "text")
    path = f"{Path(sys.executable).parent}{os.pathsep}{user.environment['PATH']}"
    environment = user.environment | {"PATH": path}
    command = ["bash", "-euxc", commands]
    done = subprocess.run(
        command, cwd=user.home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (user.home / "results" / "a.csv").exists()
    assert user.run("exec", "x", "-i", "1", "cat", "model.pt").stdout.strip().endswith("weights")
    user.run("down", "x")
    assert user.alive() == []


def test_the_recipe_of_the_page_of_capacity_uses_its_reservations(user: User, rig: Rig):
    reserved = rig.ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=4,
        TagSpecifications=[tagged("capacity-reservation", "team", "ml")],
    )["CapacityReservation"]["CapacityReservationId"]
    recipe = next(text for text in blocks("capacity", "yaml") if "reservations:" in text)
    recipe = re.sub(r"cr-\w+", reserved, recipe)
    (user.home / "reserved.yaml").write_text(
        f"name: reserved\ncloud: local\n{recipe}workload: {{command: 'true'}}\n"
    )
    plan = " ".join(user.run("plan", "reserved.yaml").stdout.split())
    assert f"p5.48xlarge reserved us-east-1a 0 marginal: 3 of {reserved}" in plan
    rig.ec2.cancel_capacity_reservation(CapacityReservationId=reserved)


def tagged(kind: str, key: str, value: str) -> dict:
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value}]}
