"""Secrets of a run: they reach the program, and are found nowhere else, also where it fails."""

import secrets
import sqlite3

import pytest
from secret_places import places_of
from terminal import User

from dlcloud.elastic.agents import PACKAGE
from tests.environments import python_with

# Another run of the tests on this machine has other secrets: `aws` takes them on its command line.
OWN = secrets.token_hex(8)
FROM_SHELL = f"hf_token-of-the-caller-{OWN}"
FROM_FILE = f"pem-line-of-a-key-file-{OWN}"
FROM_SSM = f"parameter/of=systems+manager-{OWN}"
FROM_MANAGER = f'password "quoted" of-secrets-manager-{OWN}'
SECRETS = (FROM_SHELL, FROM_FILE, FROM_SSM, FROM_MANAGER)
RECIPE = """\
name: private
cloud: local
instances: {{types: [c7i.xlarge]}}
workload:
  command: sh run.sh
  files: program
  throughput: 'rate ([0-9.]+)'
  repeats: 1
  environment: {{BATCH: 8}}
  secrets:
    TOKEN: env:MY_TOKEN
    KEY: file:../key.txt
    PARAMETER: ssm:/app/parameter
    PASSWORD: {password}
"""
PRINTS = """\
[ "$BATCH" = 8 ] && [ -n "$TOKEN" ] && [ -n "$KEY" ] && [ -n "$PARAMETER" ] && [ -n "$PASSWORD" ] || exit 9
echo "it prints $TOKEN"; echo "$KEY" >&2; echo "{\\"rate\\": \\"$PASSWORD\\"}"
echo rate 5
"""
FAILS = PRINTS + 'echo "cannot log in with $PARAMETER"; exit 3\n'


@pytest.fixture(scope="module")
def owner(user: User) -> User:
    """Someone with a value in each place."""
    folder = user.home / "project"
    (folder / "program").mkdir(parents=True)
    (user.home / "key.txt").write_text(FROM_FILE + "\n")
    user.variables["MY_TOKEN"] = FROM_SHELL
    user.aws(
        "ssm", "put-parameter", "--name", "/app/parameter", "--type", "SecureString", "--value", FROM_SSM
    )
    content = '{"password": "' + FROM_MANAGER.replace('"', '\\"') + '"}'
    user.aws("secretsmanager", "create-secret", "--name", "app", "--secret-string", content)
    return user


def recipe_of(owner: User, script: str, password: str = "'secretsmanager:app#password'") -> str:
    (owner.home / "project" / "program" / "run.sh").write_text(script)
    recipe = owner.home / "project" / "private.yaml"
    recipe.write_text(RECIPE.format(password=password))
    return str(recipe)


def assert_nowhere(owner: User, printed: str) -> None:
    (owner.home / "key.txt").rename(owner.home.parent / "key.txt")
    try:
        for secret in SECRETS:
            assert secret not in printed
            assert places_of(secret, owner.home) == []
    finally:
        (owner.home.parent / "key.txt").rename(owner.home / "key.txt")


def test_secrets_reach_the_program_and_are_found_nowhere_else(owner: User):
    done = owner.run("up", recipe_of(owner, PRINTS), "--keep", "--name", "kept", "--verbose")
    printed = done.stdout + done.stderr + owner.run("logs", "kept").stdout
    assert "it prints ***" in printed
    printed += owner.run("export", "--output", "json", expect=None).stdout
    printed += owner.run("cost-report", "--html", str(owner.home / "page.html"), expect=None).stdout
    assert_nowhere(owner, printed)
    owner.run("down", "kept")
    assert_nowhere(owner, "")


def test_a_failed_run_says_why_without_the_secret(owner: User):
    done = owner.run("up", recipe_of(owner, FAILS), expect=4)
    assert "cannot log in with ***" in done.stderr
    with sqlite3.connect(owner.home / ".dlcloud" / "store.sqlite") as store:
        lines = [line for (line,) in store.execute("SELECT line FROM records WHERE kind = 'failure'")]
    assert lines
    assert all("cannot log in with ***" in line for line in lines)
    assert_nowhere(owner, done.stdout + done.stderr)


TRAINING = """\
name: trained
cloud: local
instances: {types: [c7i.xlarge], market: spot, on_demand_base: 1}
workload:
  command: python3 train.py
  files: program
  elastic: {checkpoint_seconds: 30}
  secrets: {TOKEN: env:MY_TOKEN, KEY: file:../key.txt}
"""
RAISES = """\
import os, sys
print("it has", os.environ["TOKEN"])
sys.tracebacklimit = 0
raise RuntimeError("cannot log in", os.environ["TOKEN"], {"key": os.environ["KEY"]})
"""


@pytest.mark.long
def test_an_exception_of_a_worker_names_no_secret(owner: User):
    python_with(PACKAGE / "requirements" / "elastic.txt")
    (owner.home / "project" / "program" / "train.py").write_text(RAISES)
    recipe = owner.home / "project" / "trained.yaml"
    recipe.write_text(TRAINING)
    done = owner.run("up", str(recipe), "--verbose", expect=4)
    assert "RuntimeError: ('cannot log in', '***', {'key': '***'})" in done.stderr
    assert_nowhere(owner, done.stdout + done.stderr)


@pytest.mark.parametrize("command", ["up", "bench --recipe"])
def test_a_missing_secret_is_refused_before_anything_is_launched(owner: User, command):
    recipe = recipe_of(owner, PRINTS, password="secretsmanager:other")
    done = owner.run(*command.split(), recipe, expect=3)
    assert "reading the secret other" in done.stderr
    assert "launch" not in done.stderr
    assert owner.alive() == []
