"""Pages are run as a reader would paste them: their files are written, their shell commands run in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs("bash")
BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.-]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    "data",
    "interruptions",
    *(
        pytest.param(page, marks=pytest.mark.long)
        for page in ("debugging", "experiments", "nodes", "profiles")
    ),
]
LONG = ["hugging-face", "language-models", "tensorflow"]
"""They install a framework: with DLCLOUD_TEST_PAGES=all."""


@pytest.mark.parametrize("page", [*PAGES, *(LONG if os.environ.get("DLCLOUD_TEST_PAGES") == "all" else [])])
def test_a_page_runs_as_it_stands(user, tmp_path, page):
    commands = []
    for language, title, text in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text("utf-8")):
        if title:
            (tmp_path / title).write_text(text)
        elif language == "sh":
            commands.append(text)
    assert commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{user.environment['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-euxc", command],
            cwd=tmp_path,
            env=user.environment | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert user.alive() == []
