"""What a newcomer meets first: help, README, and recipes. The installed wheel: tests/install."""

import json
import os
import re
import shlex
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from terminal import TIMEOUT_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SKILL = (ROOT / "templates" / "skill.md").read_text("utf-8")
PAGES = [README, SKILL, *(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def _index_has_everything(user):
    """Spare pip's second for each requirement; tests/unit/cli/test_init_script.py asks an index."""
    uv = user.home / "tools" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    uv.chmod(0o755)
    user.variables["PATH"] = f"{uv.parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def schema(user):
    schema = json.loads(user.run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def commands_of(page):
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    return re.findall(r"^(?:\S*/)?dlcloud (.+)$", "\n".join(blocks), re.MULTILINE)


def test_every_command_in_readme_and_docs_exists_with_its_options(user):
    assert "up quickstart" in commands_of(README)
    lines = dict.fromkeys(line for page in PAGES for line in commands_of(page))
    assert len(lines) >= 25
    help_of = cache(lambda *command: user.run(*command, "--help").stdout)
    for line in lines:
        words = shlex.split(line, comments=True)
        help_text = help_of(*words[: 2 if words[0] == "local" else 1])
        for option in (word for word in words if word.startswith("--") and word != "--"):
            assert option.partition("=")[0] in help_text, f"{line}: {option}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_bundled_recipe_fits_the_schema_and_plans(user, schema, recipe):
    text = recipe.read_text("utf-8")
    here = user.home / recipe.name
    here.write_text(text.replace("cloud: aws", "cloud: local"))
    jsonschema.validate(yaml.safe_load(text), schema)
    for bucket, prefix in re.findall(r"from: s3://([^/]+)/([^,}\s]+)", text):
        refused = user.run("up", str(here), "--dry-run", expect=3).stderr
        assert f"there is no bucket {bucket}" in refused
        assert f'hint: eval "$(dlcloud local start | grep ^export)"; aws s3 mb s3://{bucket}' in refused
        user.aws("s3api", "create-bucket", "--bucket", bucket)
        user.aws("s3api", "put-object", "--bucket", bucket, "--key", f"{prefix}/data", "--body", str(here))
    plan = user.json("up", str(here), "--dry-run")["result"]["plan"]
    assert plan["name"] == recipe.stem
    assert plan["worst_case_usd"] is not None


def test_the_recipe_in_the_docs_plans(user):
    recipe = user.home / "documented.yaml"
    page = (ROOT / "docs" / "recipe.md").read_text("utf-8")
    recipe.write_text(
        page.partition("```yaml\n")[2].partition("```")[0].replace("cloud: aws", "cloud: local")
    )
    (user.home / "src").mkdir(exist_ok=True)
    (user.home / "src" / "train.py").touch()
    plan = user.json("up", str(recipe), "--dry-run")["result"]["plan"]
    assert plan["name"] == "my-training"


def test_init_writes_a_recipe_that_plans_and_never_overwrites(user):
    user.run("init", "mine.yaml")
    user.run("up", "mine.yaml", "--dry-run")
    before = (user.home / "mine.yaml").read_text()
    assert "exists" in user.run("init", "mine.yaml", expect=2).stderr
    assert (user.home / "mine.yaml").read_text() == before


def test_what_only_shows_leaves_no_local_ec2_running(newcomer):
    for command in (
        ("gc", "--cloud", "local"),
        ("up", newcomer.recipe(), "--dry-run"),
        ("doctor", "c5.xlarge"),
    ):
        newcomer.run(*command, *(("--cloud", "local") if command[0] == "doctor" else ()))
        assert newcomer.run("local", "status", expect=1).stderr.startswith(
            "error: the local EC2 is not running"
        )
    newcomer.run("local", "start")
    newcomer.run("up", newcomer.recipe(), "--dry-run")
    newcomer.run("local", "status")


def test_two_commands_start_one_local_cloud_that_listens_on_loopback(newcomer):
    both = [newcomer.begin("local", "start", "--output", "json") for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in both]
    urls = {answer["result"]["records"][0]["url"] for answer in answers}
    assert len(urls) == 1
    assert urls.pop().startswith("http://127.0.0.1:")
    assert newcomer.json("local", "status")["result"]["records"] == []
