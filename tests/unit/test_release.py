"""The workflow that publishes a release refuses a tag that is not the version; its commands are shell."""

import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.needs import needs

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

pytestmark = needs("bash")


def jobs(workflow):
    return yaml.safe_load(workflow.read_text("utf-8"))["jobs"]


def commands(workflow):
    steps = (step for job in jobs(workflow).values() for step in job["steps"])
    return {step.get("name", step["run"]): step["run"] for step in steps if "run" in step}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_the_commands_of_a_workflow_are_shell(workflow):
    for command in commands(workflow).values():
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=60)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_pinned_to_a_commit_and_its_release_is_named(workflow):
    actions = re.findall(r"uses: (.*)", workflow.read_text("utf-8"))
    assert actions
    assert [action for action in actions if not re.fullmatch(r"\S+@[0-9a-f]{40}  # v[0-9.]+", action)] == []


@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), (VERSION, 1), (f"v{VERSION}.1", 1)])
def test_a_tag_that_is_not_the_version_publishes_nothing(tmp_path, tag, status):
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    command = commands(ROOT / ".github" / "workflows" / "release.yml")["The tag is the version"]
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert (VERSION in done.stdout) == bool(status)


def test_the_formula_names_the_sdist_and_its_digest(tmp_path):
    (tmp_path / "dist").mkdir()
    sdist = tmp_path / "dist" / f"dlcloud-{VERSION}.tar.gz"
    sdist.write_bytes(b"an sdist")
    (tmp_path / ".github").symlink_to(ROOT / ".github")
    command = commands(ROOT / ".github" / "workflows" / "release.yml")["Fill in the formula"]
    subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, check=True, timeout=60)
    formula = (tmp_path / "dlcloud.rb").read_text("utf-8")
    assert f"/v{VERSION}/{sdist.name}" in formula
    assert sha256(b"an sdist").hexdigest() in formula
    assert "@" not in formula.replace("python@", "")


def test_only_the_job_that_publishes_may_ask_for_a_token():
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    assert [name for name, job in release.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert release["publish"]["needs"] == "build"
    assert release["publish"]["if"] == "startsWith(github.ref, 'refs/tags/')"
