"""environment.py, run as on an instance, with a package that lies on this disk: nothing is downloaded."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dlcloud.resources.texts import template

LIMIT_S = 120.0
KEY = "0123456789abcdef"


def write_wheel(folder):
    """Write the smallest wheel there can be."""
    files = {
        "tinysample.py": b"ANSWER = 42\n",
        "tinysample-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tinysample\nVersion: 1.0\n",
        "tinysample-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    files["tinysample-1.0.dist-info/RECORD"] = "\n".join(
        [*lines, "tinysample-1.0.dist-info/RECORD,,"]
    ).encode()
    with zipfile.ZipFile(folder / "tinysample-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home whose environments are kept for the whole module, for each takes seconds to build."""
    made = tmp_path_factory.mktemp("home")
    (made / "environment.py").write_text(template("environment.py"))
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return write_wheel(tmp_path_factory.mktemp("wheels"))


def begin(home, wheels, requirements, key=KEY):
    environment = os.environ | {
        "XDG_CACHE_HOME": str(home / ".cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    process = subprocess.Popen(
        [sys.executable, str(home / "environment.py"), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    process.stdin.write(requirements)
    process.stdin.close()
    process.stdin = None
    return process


def answer(process):
    output, progress = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, progress
    return json.loads(output.splitlines()[-1])


def works(python):
    done = subprocess.run(
        [python, "-c", "import tinysample; print(tinysample.ANSWER)"], capture_output=True, check=True
    )
    return done.stdout == b"42\n"


def test_two_builders_at_once_build_one_environment(home, wheels):
    both = [begin(home, wheels, "tinysample==1.0\n") for _ in range(2)]
    first, second = (answer(process) for process in both)
    assert sorted([first["reused"], second["reused"]]) == [False, True]
    assert first["python"] == second["python"]
    assert Path(first["python"]).is_relative_to(home / ".cache/dlcloud/environments")
    assert works(first["python"])
    again = answer(begin(home, wheels, "tinysample==1.0\n"))
    assert again["reused"]
    assert again["python"] == first["python"]
    assert again["seconds"] < first["seconds"] + second["seconds"]


def test_a_torn_environment_is_built_anew(home, wheels):
    folder = Path(answer(begin(home, wheels, "tinysample==1.0\n"))["python"]).parents[1]
    (folder / "complete").unlink()
    for left in folder.rglob("tinysample*"):
        if left.is_file():
            left.unlink()
    built = answer(begin(home, wheels, "tinysample==1.0\n"))
    assert not built["reused"]
    assert works(built["python"])


def test_an_environment_that_pip_refuses_is_not_complete(home, wheels):
    process = begin(home, wheels, "tinysample==9.9\n", "refused")
    output, progress = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert output == ""
    assert "pip failed" in progress
    assert "tinysample==9.9" in progress
    (folder,) = (home / ".cache/dlcloud/environments").glob("refused*/")
    assert not (folder / "complete").exists()
