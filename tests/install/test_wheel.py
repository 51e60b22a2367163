"""The wheel, built and installed as a user does: it brings what it needs, and its first commands run.

uv builds and installs it where it is installed (some seconds), else pip (half a minute). The test is skipped
where no package index can be reached. DLCLOUD_TEST_WHEEL names a wheel that was built before.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import find

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
FASTEST = "uv"
UV = find(FASTEST) or shutil.which(FASTEST, path=Path(sys.executable).parent)
UNREACHABLE = re.compile(
    "NewConnectionError|Temporary failure in name resolution|Network is unreachable|Connection refused"
    "|timed out|dns error|error sending request|network was disabled|Failed to fetch"
    r"|\(from versions: none\)",
    re.IGNORECASE,
)


def run_first(*ways):
    """Run the commands of the first way whose package index answers; skip the test where none does."""
    for commands in ways:
        for command in commands:
            words = [str(word) for word in command]
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            if done.returncode:
                break
        else:
            return
        assert UNREACHABLE.search(done.stderr), done.stderr
    pytest.skip(f"no package index is reachable: {done.stderr.strip().splitlines()[-1][:200]}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Give the path of the wheel, built of the working tree."""
    if given := os.environ.get("DLCLOUD_TEST_WHEEL"):
        return ROOT / given
    folder = tmp_path_factory.mktemp("wheel")
    by_uv = [(UV, "build", "-q", "--wheel", "--out-dir", folder, ROOT)]
    by_pip = [(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)]
    run_first(*([by_uv] if UV else []), by_pip)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Give the folder of a new environment with the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    by_uv = [
        (UV, "venv", "-q", "--allow-existing", "--python", sys.executable, folder),
        (UV, "pip", "install", "-q", "--python", folder, f"{wheel}[local]"),
    ]
    pip = [folder / "bin" / "python", "-m", "pip"]
    by_pip = [
        (sys.executable, "-m", "venv", "--clear", folder),
        (*pip, "install", "-q", "--no-compile", f"{wheel}[local]"),
    ]
    run_first(*([by_uv] if UV else []), by_pip)
    return folder


@pytest.fixture
def dlcloud(installed, tmp_path):
    """Run the installed command in a home of its own, and end what it started."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "DLCLOUD_", "PYTHON", "VIRTUAL_ENV", "XDG_"))
    }

    def run(*words):
        done = subprocess.run(
            [installed / "bin" / "dlcloud", *words],
            env={**kept, "HOME": str(tmp_path), "COLUMNS": "80"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    run("local", "stop")


def test_the_installed_wheel_runs_its_first_commands(dlcloud, installed):
    assert "Usage: dlcloud" in dlcloud("--help")
    recipes = dlcloud("recipes")
    for recipe in (ROOT / "recipes").glob("*.yaml"):
        assert recipe.stem in recipes
    assert "plan of quickstart" in dlcloud("up", "quickstart", "--dry-run")
    site = next(installed.glob("lib/python3.*/site-packages"))
    assert (site / "dlcloud" / "py.typed").exists()
    assert (site / "dlcloud_report" / "py.typed").exists()
