"""Clients that are not made by AWS: Libcloud, s3fs with pandas, Ansible's amazon.aws.

s3fs needs a botocore of its own, and Ansible is heavy: they are called from another virtual environment,
which DLCLOUD_TEST_CLIENTS names; without it their tests are skipped. `.ci/run` makes one with s3fs and pandas
where CI is set.
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
    yield Rig(site, site.start())
    site.stop()


@pytest.fixture
def call(rig, tmp_path):
    """Run a program of the clients' environment, and return what it printed."""
    environ = {"PATH": f"{CLIENTS}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environ |= {**rig.endpoint.environment(), "ANSIBLE_HOST_KEY_CHECKING": "False"}

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
