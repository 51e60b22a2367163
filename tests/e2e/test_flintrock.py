"""Flintrock, which launches Spark clusters on EC2, as its user runs it, on the local EC2."""

import os
import subprocess

import pytest

from dlcloud.local.instance.isolation import Level
from dlcloud.local.site import LocalSite
from tests.environments import ROOT, python_with
from tests.fakes.local_ec2 import UBUNTU, Rig, wait_for
from tests.prefork import Daemons

PACKAGES = """#!/bin/sh
ln -s /usr/bin/python3 /usr/bin/python
printf '#!/bin/sh\\nexit 0\\n' >/usr/bin/yum
printf '#!/bin/sh\\necho openjdk version \\"11.0.1\\" >&2\\n' >/usr/bin/java
chmod +x /usr/bin/yum /usr/bin/java
"""
"""What Flintrock expects of an image, and Ubuntu's has not. Nothing is installed: it gets no Spark here."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    site = LocalSite(tmp_path_factory.mktemp("site"))
    rig = Rig(site, Daemons.of_this_process().start(site))
    yield rig
    site.stop()


@pytest.fixture(scope="module")
def flintrock(rig, tmp_path_factory):
    """Flintrock 2.1, with older boto3 and paramiko than dlcloud's, in an environment of its own."""
    if rig.control.status()["isolation"]["level"] != Level.NAMESPACES:
        pytest.skip("its set-up writes to /media and formats disks: only with namespaces")
    python = python_with(ROOT / "tests" / "fixtures" / "flintrock.txt")
    home = tmp_path_factory.mktemp("home")
    key = home / "key.pem"
    key.touch(mode=0o600)
    key.write_text(rig.ec2.create_key_pair(KeyName="spark")["KeyMaterial"], encoding="utf-8")
    (home / "user-data").write_text(PACKAGES, encoding="utf-8")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8"}
    env |= rig.endpoint.environment()

    def run(command, *words):
        words = [python.with_name("flintrock"), command, "--ec2-region", "us-east-1", *words]
        done = subprocess.run(words, env=env, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_flintrock_launches_uses_and_destroys_a_cluster(rig, flintrock):
    login = ["--ec2-identity-file", "key.pem", "--ec2-user", "ubuntu"]
    launch = [*login, "--ec2-key-name", "spark", "--ec2-ami", UBUNTU, "--ec2-instance-type", "c5.large"]
    launch += ["--ec2-user-data", "user-data", "--ec2-authorize-access-from", "127.0.0.1/32"]
    launch += ["--num-slaves", "1", "--no-install-hdfs", "--no-install-spark", "--assume-yes"]
    assert "launch finished" in flintrock("launch", *launch, "x")
    described = flintrock("describe", "x")
    assert "node-count: 2" in described
    assert "state: running" in described
    flintrock("run-command", *login, "x", 'test -d /media/root && test "$(logname)" = ubuntu')
    pages = rig.ec2.describe_instances()["Reservations"]
    names = [instance["InstanceId"] for page in pages for instance in page["Instances"]]
    flintrock("destroy", "--assume-yes", "x")
    wait_for(lambda: all(rig.state(name) == "terminated" for name in names), "all have ended")
