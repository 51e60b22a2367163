"""The wheel in fresh environments of several Pythons, in a home with spaces and letters beyond ASCII.

DLCLOUD_TEST_INSTALL names the interpreters, with colons between them, such as
`/usr/bin/python3:python3.13`; the packages come from the index of pip. Where DLCLOUD_TEST_UV names uv, that
installs, and `uv tool install` is tried, too. A minute or two for each.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.read_only import read_only

ROOT = Path(__file__).parents[2]
PYTHONS = [name for name in os.environ.get("DLCLOUD_TEST_INSTALL", "").split(":") if name]
UV = os.environ.get("DLCLOUD_TEST_UV", "")
TIMEOUT_S = 900
RECIPE = """
name: tiny
cloud: local
instances: {types: [c7i.xlarge]}
workload: {command: python3 train.py, files: ., throughput: '([0-9.]+) images/s', repeats: 1}
keep: {files: [model.txt]}
"""
TRAIN = "print('45.5 images/s'); open('model.txt', 'w').write('é')\n"

pytestmark = pytest.mark.skipif(not PYTHONS, reason="minutes, and packages: set DLCLOUD_TEST_INSTALL")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    if UV:
        run(UV, "build", "-q", "--wheel", "--out-dir", folder, ROOT)
    else:
        run(sys.executable, "-m", "venv", folder / "venv")
        run(folder / "venv" / "bin" / "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    return next(folder.glob("*.whl"))


def run(*command):
    subprocess.run([*map(str, command)], check=True, timeout=TIMEOUT_S)


def install(python, wheel, environment):
    """Make an environment with dlcloud in it."""
    if UV:
        run(UV, "venv", "-q", "--python", python, environment)
        run(UV, "pip", "install", "-q", "--python", environment / "bin" / "python", f"{wheel}[local]")
    else:
        run(python, "-m", "venv", environment)
        run(environment / "bin" / "python", "-m", "pip", "install", "-q", f"{wheel}[local]")


class Installed:
    """dlcloud as someone installed it, with a home of their own."""

    def __init__(self, folder, program):
        self.home, self.program = folder / "ma maison é", program
        self.project = self.home / "mon projet ö"
        self.project.mkdir(parents=True)

    def run(self, *words):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "DLCLOUD_", "PYTHON", "VIRTUAL_ENV"))
        }
        done = subprocess.run(
            [self.program, *words],
            env=kept | {"HOME": str(self.home), "COLUMNS": "80"},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def walk(self):
        """The first minutes: a plan, an own script on the local EC2, its result, and nothing left."""
        (self.project / "tiny é.yaml").write_text(RECIPE, "utf-8")
        (self.project / "train.py").write_text(TRAIN, "utf-8")
        assert "plan of quickstart" in self.run("up", "quickstart", "--dry-run").stdout
        try:
            done = self.run("up", "tiny é.yaml")
            assert "45.5" in done.stdout
            assert "1 file(s) downloaded to" in done.stderr
            assert "45.5" in self.run("cost-report").stdout
            assert self.run("status").stdout == "nothing is up\n"
        finally:
            self.run("local", "stop")


@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_runs_in_a_fresh_environment(python, wheel, tmp_path):
    environment = tmp_path / "venv é"
    install(python, wheel, environment)
    with read_only(environment):  # as a system's administrator installs it
        Installed(tmp_path, str(environment / "bin" / "dlcloud")).walk()


@pytest.mark.skipif(not UV, reason="set DLCLOUD_TEST_UV to the path of uv")
def test_uv_installs_it_as_a_tool(wheel, tmp_path):
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    command = [UV, "tool", "install", "-q", "--python", sys.executable, f"dlcloud[local] @ {wheel.as_uri()}"]
    subprocess.run(command, env={**os.environ, **folders}, check=True, timeout=TIMEOUT_S)
    Installed(tmp_path, str(tmp_path / "bin" / "dlcloud")).walk()
    assert shutil.which("dlcloud", path=str(tmp_path / "bin"))
