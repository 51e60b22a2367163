"""No test calls a program beyond Python, sh and coreutils that the one list does not name."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import COREUTILS, PROGRAMS, missing

ROOT = Path(__file__).resolve().parents[2]
CALLS = frozenset({"run", "Popen", "call", "check_call", "check_output", "which", "find"})
OWNERS = frozenset({"subprocess", "shutil", "user", "programs"})
ALLOWED = frozenset({program.name for program in PROGRAMS}) | COREUTILS | {"dlcloud", "python3", "sh"}
APART = frozenset({"containers", "fuzz", "performance", "vm"})
"""Folders whose programs state what they need themselves, and are not run with the tests."""


def called(tree):
    """Yield the programs that a module calls by name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        owner, name = getattr(getattr(node.func, "value", None), "id", ""), getattr(node.func, "attr", "")
        if name not in CALLS or owner not in OWNERS or (owner == "user" and name != "call"):
            continue
        first = node.args[0]
        if isinstance(first, ast.List | ast.Tuple) and first.elts:
            first = first.elts[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and " " not in first.value:
            yield first.value.removeprefix("/bin/")


def modules():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parts[len(ROOT.parts) + 1] not in APART:
            yield path, path.read_text("utf-8")


def test_no_test_calls_a_program_that_the_list_does_not_name():
    found = {(str(path), name) for path, text in modules() for name in called(ast.parse(text))}
    assert {(path, name) for path, name in found if name not in ALLOWED} == set()


def test_a_test_that_calls_a_program_says_that_it_needs_it():
    listed = {program.name for program in PROGRAMS}
    unmarked = {
        (path.name, name)
        for path, text in modules()
        for name in listed & {*called(ast.parse(text))}
        if f'"{name}"' not in "".join(_marks(text))
    }
    assert unmarked == set()


def _marks(text):
    """Yield what stands in the calls of needs, missing and find, and in conditions on shutil.which."""
    words = ("needs(", "missing(", "find(", "shutil.which(")
    return (line for line in text.splitlines() if any(word in line for word in words))


def test_what_is_missing_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("tests.programs.PLACES", ())
    assert missing("rsync", "git") == "there is no rsync (apt-get install rsync)"
    assert missing() == ""


BARE = """
import subprocess, sys
sys.path.insert(0, {root!r})
from tests import conftest
conftest.pytest_configure()
subprocess.run(["true"], check=True)
subprocess.run([sys.executable, "-c", ""], check=True)
try:
    subprocess.run(["ls"])
except conftest.UnlistedProgramError as error:
    print(error)
"""


def test_the_process_of_the_tests_can_refuse_programs_that_are_not_listed():
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(root=str(ROOT))],
        env=os.environ | {"DLCLOUD_TEST_PROGRAMS": "listed"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ls is not in tests/programs.py\n"


@pytest.mark.parametrize("is_ci", [False, True])
def test_ci_installs_the_list(is_ci):
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "programs.py"],
        env={name: value for name, value in os.environ.items() if name != "CI"}
        | ({"CI": "1"} if is_ci else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[0] for line in done.stdout.splitlines()]
    installed = [program for program in PROGRAMS if not program.is_chosen]
    assert names == [program.name for program in installed if is_ci or not program.is_heavy]
    assert "python3 tests/programs.py" in (ROOT / ".ci" / "run").read_text()
