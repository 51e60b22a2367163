"""The first hour by the skill alone: its commands as they stand there, in order, from an empty home.

Only the names that it states are used: those of JSON keys, of kinds of errors, and of the recipe's keys.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = """
import time

for _ in range(3):
    time.sleep(0.05)
    print(f"{64 / 0.05:.1f} images/s")
"""
MODEL = "open('model.txt', 'w').write('weights')\n"


@pytest.fixture
def skill(newcomer):
    return newcomer.run("skill").stdout


def blocks(skill, language):
    return re.findall(rf"^```{language}\n(.*?)^```", skill, re.DOTALL | re.MULTILINE)


def stated(skill, command):
    """Return the keys that the skill states for the result of a command."""
    row = next(line for line in skill.splitlines() if re.match(rf"\| `{command}", line))
    keys = row.partition("|")[2].partition("|")[2]
    return set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", keys))) - {"records", "plan"}


def test_the_commands_of_the_first_hour_run_as_they_stand(newcomer, skill):
    (newcomer.home / "infer.py").write_text(SCRIPT)
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
def test_its_recipe_plans_and_brings_home_what_it_keeps(newcomer, skill):
    recipe = blocks(skill, "yaml")[0].replace(
        "  requirements: [numpy==2.4.6]    # pinned; or a requirements.txt\n", "  commands: ''\n"
    )
    assert "numpy" not in recipe
    assert yaml.safe_load(recipe)["name"] == "infer"
    (newcomer.home / "own.yaml").write_text(recipe)
    (newcomer.home / "infer.py").write_text(SCRIPT + MODEL)
    done = newcomer.run("up", "own.yaml", "--output", "json")
    assert "1 file(s) downloaded to" in done.stderr


def test_errors_are_of_the_kinds_that_it_lists(newcomer, skill):
    for words, code in ((("down", "nothing"), 2), (("up", "nothing.yaml"), 2), (("compare", "a", "b"), 2)):
        error = newcomer.json(*words, expect=code)["error"]
        assert {"kind", "message", "hint", "exit_code"} == {*error}
        row = next(line for line in skill.splitlines() if line.startswith(f"| {code} |"))
        assert error["kind"] in row
