"""Pages and the skill run as they stand, as a reader would paste them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dlcloud.recipe.recipe import read_recipe
from tests.needs import needs

ROOT = Path(__file__).resolve().parents[2]
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


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@needs("bash")
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


def test_the_page_of_your_own_script_holds_line_by_line(newcomer):
    page = (ROOT / "docs" / "your-own-script.md").read_text("utf-8")
    script, *others = blocks(page, "python")
    folder = newcomer.home
    (folder / "train.py").write_text(script)
    printed = [
        newcomer.run(*shlex.split(line)[1:]) for block in blocks(page, "sh") for line in block.splitlines()
    ]
    recipe = (folder / "train.yaml").read_text()
    assert read_recipe(recipe, "train.yaml").workload.unit == "images"
    (settings,) = blocks(page, "yaml")
    compared = recipe.replace("\nworkload:\n", f"\nworkload:\n{settings}", 1)
    assert [setting.name for setting in read_recipe(compared, "x").workload.settings] == ["small", "large"]
    assert "your job: 1.2M images" in printed[-1].stdout
    for other in others:
        compile(other, "other", "exec")


ROOT = Path(__file__).parents[2]
INFER = """
import time

for _ in range(3):
    time.sleep(0.05)
    print(f"{64 / 0.05:.1f} images/s")
"""
MODEL = "open('model.txt', 'w').write('weights')\n"


@pytest.fixture
def skill(newcomer):
    return newcomer.run("skill").stdout


def stated(skill, command):
    """Return the keys that the skill states for the result of a command."""
    row = next(line for line in skill.splitlines() if re.match(rf"\| `{command}", line))
    keys = row.partition("|")[2].partition("|")[2]
    return set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", keys))) - {"records", "plan"}


def test_the_commands_of_the_first_hour_run_as_they_stand(newcomer, skill):
    (newcomer.home / "infer.py").write_text(INFER)
    results = {}
    commands = [line for block in blocks(skill, "sh") for line in block.splitlines()]
    assert len(commands) >= 12
    for command in commands:
        words = shlex.split(command)[1:]
        if words[:2] == ["up", "quickstart"] and "--dry-run" not in words:
            continue  # a minute or two, of models: test_recipes runs it
        output = newcomer.run(*words).stdout
        if "json" in words:
            results[" ".join(words[:-2])] = json.loads(output)["result"]
    plan = results["up infer.yaml --dry-run"]
    assert stated(skill, "up --dry-run") <= {*plan["plan"], *plan["records"][0]}
    rows = results["up infer.yaml"]["records"]
    assert stated(skill, "up`, `bench") <= {*rows[0]}
    assert rows[0]["throughput"] == pytest.approx(1280)
    assert rows[0]["rehearsal"]
    report = results["cost-report --job 1.2M images"]
    assert {"answer", "job"} <= {*report}
    assert {"hours", "on_demand_usd", "spot_usd"} <= {*report["job"][0]}
    assert {"superlative", "case", "instance_type", "setting", "reason", "command"} <= {*report["answer"][0]}
    compared = results["compare c7i.xlarge c6i.xlarge"]["records"]
    assert stated(skill, "compare A B") <= {*compared[0]}
    assert {compared[0]["type_a"], compared[0]["type_b"]} == {"c7i.xlarge", "c6i.xlarge"}
    assert stated(skill, "status") <= {*results["status"]["records"][0]}
    ended = results["down mine"]["records"][0]
    assert stated(skill, "down") <= {*ended}
    assert (ended["cluster"], ended["state"]) == ("mine", "down")
    assert "on-demand" in json.dumps(results["up quickstart --dry-run"])


@pytest.mark.long
def test_the_recipe_of_the_skill_plans_and_brings_home_what_it_keeps(newcomer, skill):
    recipe = blocks(skill, "yaml")[0].replace(
        "  requirements: [numpy==2.4.6]    # pinned; or a requirements.txt\n", "  commands: ''\n"
    )
    assert "numpy" not in recipe
    assert yaml.safe_load(recipe)["name"] == "infer"
    (newcomer.home / "own.yaml").write_text(recipe)
    (newcomer.home / "infer.py").write_text(INFER + MODEL)
    done = newcomer.run("up", "own.yaml", "--output", "json")
    assert "1 file(s) downloaded to" in done.stderr


def test_errors_are_of_the_kinds_that_the_skill_lists(newcomer, skill):
    for words, code in ((("down", "nothing"), 2), (("up", "nothing.yaml"), 2), (("compare", "a", "b"), 2)):
        error = newcomer.json(*words, expect=code)["error"]
        assert {"kind", "message", "hint", "exit_code"} == {*error}
        row = next(line for line in skill.splitlines() if line.startswith(f"| {code} |"))
        assert error["kind"] in row
