"""dlcloud elsewhere: as on macOS, in folders that are read-only, full or removed, names beyond ASCII."""

import shutil

import pytest
from terminal import DLCLOUD, TIMEOUT_S, User, read_until

from tests.fakes.read_only import read_only

ONE_ADDRESS = """\
import errno, socket

class OneAddress(socket.socket):
    def bind(self, address):
        if self.family == socket.AF_INET and address[0] not in ("127.0.0.1", "localhost", "", "0.0.0.0"):
            raise OSError(errno.EADDRNOTAVAIL, "Can't assign requested address")
        super().bind(address)

socket.socket = OneAddress
"""
"""A sitecustomize for every Python of a user: as on macOS, the loopback is 127.0.0.1 alone."""

RECIPE = """\
name: quick
cloud: local
instances: {types: [c5.xlarge]}
workload:
  command: python3 'mon modèle.py'
  files: .
  throughput: 'images/sec: ([0-9.]+)'
  unit: images
  repeats: 1
keep: {files: ['résultat.txt']}
"""
SCRIPT = """\
open("résultat.txt", "w", encoding="utf-8").write("é")
print("images/sec: 5")
"""


@pytest.mark.long
def test_a_machine_with_one_loopback_address_has_several_instances(newcomer):
    site = newcomer.home / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(ONE_ADDRESS)
    newcomer.variables["PYTHONPATH"] = str(site)
    newcomer.run("up", newcomer.recipe(count=2), "--keep", "--name", "x")
    records = newcomer.json("status")["result"]["records"]
    assert {record["host"] for record in records} == {"127.0.0.1"}
    assert len({record["ssh_port"] for record in records}) == 2
    assert len(newcomer.run("exec", "x", "--", "echo", "here").stdout.split("here")) == 3
    newcomer.run("down", "x")
    assert newcomer.alive() == []


def test_a_read_only_folder_and_names_beyond_ascii_will_do(tmp_path):
    home, project = tmp_path / "ma maison é", tmp_path / "mon projet ö 日本"
    home.mkdir()
    project.mkdir()
    (project / "essai é.yaml").write_text(RECIPE, "utf-8")
    (project / "mon modèle.py").write_text(SCRIPT, "utf-8")
    user = User(home)
    try:
        with read_only(project):
            done = user.run("up", str(project / "essai é.yaml"))
        (kept,) = (home / ".dlcloud").glob("runs/*/files/résultat.txt")
        assert kept.read_text("utf-8") == "é"
        assert "1 file(s) downloaded to" in done.stderr
        assert user.alive() == []
    finally:
        user.run("local", "stop")


@pytest.mark.long
def test_a_home_that_is_removed_under_a_command_is_no_bug(newcomer):
    process = newcomer.begin("up", newcomer.recipe("sleep 600"))
    read_until(process, "running command")
    shutil.rmtree(newcomer.home / ".dlcloud", ignore_errors=True)
    _, printed = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in {1, 3, 4}, printed
    assert "a bug in dlcloud" not in printed
    assert "Traceback" not in printed


FULL = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", str(DLCLOUD))


@pytest.mark.timeout(300)
def test_instances_are_terminated_from_a_full_disk(user):
    user.run("up", user.recipe(), "--keep")
    full = User(home=user.home, command=FULL)
    down = full.run("down", "--all", expect=1)
    assert "is terminated, but" in down.stderr
    assert "hint: free space on" in down.stderr
    assert "terminated" in full.run("status").stdout


def test_a_full_disk_is_named_where_the_local_ec2_cannot_start(newcomer):
    full = User(home=newcomer.home, command=FULL)
    newcomer.run("status")
    refused = full.run("local", "start", expect=1)
    assert "nothing can be written there: File too large" in refused.stderr
    assert "hint: free space on" in refused.stderr
