"""dlcloud elsewhere: one loopback address as on macOS, names beyond ASCII, folders that are read-only."""

import pytest
from terminal import User

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
def test_a_machine_with_one_loopback_address_has_several_instances(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONE_ADDRESS)
    user = User(tmp_path, variables={"PYTHONPATH": str(tmp_path / "site")})
    try:
        user.run("up", user.recipe(count=2), "--keep", "--name", "x")
        records = user.json("status")["result"]["records"]
        assert {record["host"] for record in records} == {"127.0.0.1"}
        assert len({record["ssh_port"] for record in records}) == 2
        assert len(user.run("exec", "x", "--", "echo", "here").stdout.split("here")) == 3
        user.run("down", "x")
        assert user.alive() == []
    finally:
        user.run("local", "stop")


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
