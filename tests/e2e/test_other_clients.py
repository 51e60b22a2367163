"""Clients that are not made by AWS: Libcloud, s3fs with pandas, MinIO's, Ansible's amazon.aws, Ray, Parsl.

s3fs needs a botocore of its own, and others are heavy: they are called from another virtual environment, that
of DLCLOUD_TEST_CLIENTS; a test is skipped where its client is not there. `.ci/run` makes one with all of them
where CI is set: pip install s3fs pandas minio parsl ansible "ray[default]" boto3.
"""

import os
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider

from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import UBUNTU, Rig
from tests.needs import needs
from tests.prefork import Daemons

CLIENTS = Path(os.environ.get("DLCLOUD_TEST_CLIENTS") or "/nonexistent") / "bin"
BUCKETS = """
import pandas, s3fs
files = s3fs.S3FileSystem()
files.mkdir("tables")
frame = pandas.DataFrame({"x": range(1000), "y": [f"row {i}" for i in range(1000)]})
frame.to_csv("s3://tables/a/frame.csv", index=False)
assert pandas.read_csv("s3://tables/a/frame.csv").equals(frame)
with files.open("tables/large", "wb", block_size=5 << 20) as stream:
    for _ in range(12):
        stream.write(bytes(1 << 20))
assert files.info("tables/large")["size"] == 12 << 20
assert files.ls("tables") == ["tables/a", "tables/large"]
files.rm("tables", recursive=True)
"""
MINIO = """
import datetime, io, os, urllib.request
from minio import Minio
from minio.commonconfig import ComposeSource, CopySource
from minio.datatypes import PostPolicy
from minio.deleteobjects import DeleteObject
keys = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
client = Minio(address, *keys, secure=False, region="us-east-1")
bucket, large = "of-minio", bytes(11 << 20)
client.make_bucket(bucket)
client.put_object(bucket, "a/large", io.BytesIO(large), len(large), part_size=5 << 20)
client.put_object(bucket, "small", io.BytesIO(b"abc"), 3, metadata={"of": "mine"})
assert client.get_object(bucket, "a/large", offset=5, length=7).read() == bytes(7)
assert client.stat_object(bucket, "small").metadata["x-amz-meta-of"] == "mine"
client.copy_object(bucket, "copy", CopySource(bucket, "small"))
client.compose_object(bucket, "whole", [ComposeSource(bucket, "a/large"), ComposeSource(bucket, "small")])
assert client.stat_object(bucket, "whole").size == len(large) + 3
assert urllib.request.urlopen(client.presigned_get_object(bucket, "small")).read() == b"abc"
names = [entry.object_name for entry in client.list_objects(bucket, recursive=True)]
assert names == ["a/large", "copy", "small", "whole"]
assert not list(client.remove_objects(bucket, [DeleteObject(name) for name in names]))
client.remove_bucket(bucket)
"""
PARSL = """
import boto3, time
from parsl.providers import AWSProvider
boto3.client("ec2").create_key_pair(KeyName="parsl")
place = {"instance_type": "c7i.large", "region": "us-east-1", "state_file": "state.json"}
provider = AWSProvider("IMAGE", "parsl", **place)
job = provider.submit("sleep 600", 1)
while "RUNNING" not in str(provider.status([job])):
    time.sleep(1)
assert provider.cancel([job]) == [True]
"""
CLUSTER = """
cluster_name: tiny
max_workers: 0
provider: {type: aws, region: us-east-1, cache_stopped_nodes: false}
auth: {ssh_user: ubuntu}
available_node_types:
  head: {node_config: {InstanceType: c7i.large, ImageId: IMAGE}}
head_node_type: head
initialization_commands: []
setup_commands: []
head_setup_commands: []
head_start_ray_commands: [echo begun > begun]
worker_start_ray_commands: []
"""
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
  - amazon.aws.ec2_key: {name: mine, key_material: "KEY"}
  - amazon.aws.ec2_security_group:
      {name: web, description: x, rules: [{proto: tcp, ports: [22], cidr_ip: 127.0.0.1/32}]}
  - amazon.aws.ec2_instance:
      {name: one, key_name: mine, image_id: IMAGE, instance_type: c7i.large, security_group: web, wait: true,
       tags: {role: worker}}
  - amazon.aws.ec2_vol_info: {}
"""
INVENTORY = """
plugin: amazon.aws.aws_ec2
regions: [us-east-1]
filters: {"tag:role": worker, instance-state-name: running}
keyed_groups: [{key: tags.role, prefix: role}]
hostnames: [instance-id]
compose:
  ansible_host: public_ip_address
  ansible_port: tags['dlcloud:ssh-port'] | int
"""
END = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
  - amazon.aws.ec2_instance: {state: absent, filters: {"tag:role": worker}, wait: true}
  - amazon.aws.ec2_security_group: {name: web, state: absent}
  - amazon.aws.ec2_key: {name: mine, state: absent}
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    site = LocalSite(tmp_path_factory.mktemp("site"))
    yield Rig(site, Daemons.of_this_process().start(site))
    site.stop()


@pytest.fixture
def call(rig, tmp_path):
    """Run a program of the clients' environment, and return what it printed."""
    environ = {"PATH": f"{CLIENTS}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environ |= {**rig.endpoint.environment(), "ANSIBLE_HOST_KEY_CHECKING": "False"}
    # The path of its socket would be too long below a worker's folder.
    environ |= {"ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    environ |= {"TMPDIR": str(tmp_path)}  # Ray keeps there what it knows of clusters

    def run(name, *words):
        command = [CLIENTS / name, *words]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_libcloud_creates_tags_lists_and_ends_an_instance(rig):
    host, _, port = rig.endpoint.url.removeprefix("http://").partition(":")
    key = rig.endpoint.access_key
    driver = get_driver(Provider.EC2)(
        key.key_id,
        key.secret,
        region="us-east-1",
        host=host,
        port=int(port),
        secure=False,
        signature_version="4",
    )
    (image,) = driver.list_images(ex_image_ids=[UBUNTU])
    size = next(size for size in driver.list_sizes() if size.id == "c7i.large")
    node = driver.create_node(name="one", image=image, size=size)
    ((node, addresses),) = driver.wait_until_running([node], wait_period=0.5)
    assert addresses
    assert driver.ex_create_tags(node, {"role": "worker"})
    (found,) = driver.list_nodes(ex_filters={"tag:role": "worker"})
    assert (found.id, found.name) == (node.id, "one")
    volume = driver.create_volume(1, "data", location=driver.list_locations()[0])
    assert volume.id in [other.id for other in driver.list_volumes()]
    assert driver.destroy_volume(volume)
    assert driver.destroy_node(node)


@pytest.mark.skipif(not (CLIENTS / "python").exists(), reason="DLCLOUD_TEST_CLIENTS names no environment")
def test_pandas_and_s3fs_write_and_read_buckets(call, tmp_path):
    (tmp_path / "program.py").write_text(BUCKETS)
    call("python", "program.py")


@pytest.mark.parametrize(("package", "program"), [("minio", MINIO), ("parsl", PARSL)])
def test_a_python_program_of_another_client_works(call, tmp_path, package, program):
    if not list(CLIENTS.parent.glob(f"lib/python*/site-packages/{package}")):
        pytest.skip(f"there is no {package}")
    (tmp_path / "program.py").write_text(program.replace("IMAGE", UBUNTU))
    call("python", "program.py")


@needs("ssh", "rsync")
@pytest.mark.skipif(not (CLIENTS / "ray").exists(), reason="there is no Ray")
def test_ray_brings_a_node_up_runs_a_command_and_takes_it_down(rig, call, tmp_path):
    """Ray's runtime is not installed on the node: it would fetch hundreds of MB."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("IMAGE", UBUNTU))
    call("ray", "up", "-y", "--no-config-cache", "cluster.yaml")
    assert "begun" in call("ray", "exec", "cluster.yaml", "cat begun")
    call("ray", "down", "-y", "cluster.yaml")
    states = {
        instance["State"]["Name"]
        for page in rig.ec2.get_paginator("describe_instances").paginate()
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
        if {"Key": "ray-cluster-name", "Value": "tiny"} in instance["Tags"]
    }
    assert states <= {"shutting-down", "terminated"}
    assert states


@needs("ssh")
@pytest.mark.skipif(not (CLIENTS / "ansible-playbook").exists(), reason="there is no Ansible")
def test_ansible_creates_lists_pings_and_ends_an_instance(rig, call, tmp_path):
    encodings = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    (tmp_path / "key").write_bytes(rig.key.private_bytes(*encodings, serialization.NoEncryption()))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "play.yml").write_text(PLAY.replace("KEY", rig.public_key).replace("IMAGE", UBUNTU))
    (tmp_path / "aws_ec2.yml").write_text(INVENTORY)
    (tmp_path / "end.yml").write_text(END)
    assert "failed=0" in call("ansible-playbook", "play.yml", "-i", "localhost,")
    assert "role_worker" in call("ansible-inventory", "-i", "aws_ec2.yml", "--graph")
    login = ("-u", "ubuntu", "--private-key", "key")
    assert '"ping": "pong"' in call("ansible", "-i", "aws_ec2.yml", "role_worker", "-m", "ping", *login)
    assert "failed=0" in call("ansible-playbook", "end.yml", "-i", "localhost,")
