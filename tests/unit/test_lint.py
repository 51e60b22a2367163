"""The linters and the type checker, as tests: one command runs everything."""

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PRIVATE_WORDS = re.compile(r"\b(told|whoever|nobody|somebody)\b", re.IGNORECASE)
VAGUE_NAMES = {"each", "what", "told", "said", "known", "seen", "wanted", "found"}
LINTERS = [
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports", "--no-cache"),
]


@pytest.mark.parametrize("command", LINTERS, ids=" ".join)
def test_clean(command):
    program, *arguments = command
    done = subprocess.run(
        [BIN / program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def modules():
    for path in sorted((ROOT / "dlcloud").rglob("*.py")):
        yield path.relative_to(ROOT), path.read_text("utf-8")


def test_the_code_uses_the_words_of_its_field():
    assert [(path, match[0]) for path, text in modules() for match in PRIVATE_WORDS.finditer(text)] == []
    names = [
        (path, node.lineno, name)
        for path, text in modules()
        for node in ast.walk(ast.parse(text))
        if (name := getattr(node, "id", getattr(node, "arg", None))) in VAGUE_NAMES
    ]
    assert names == []


def test_no_two_modules_of_tests_have_one_name():
    """Where a folder of tests is no package, pytest refuses to collect a second module of one name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_hooks_before_a_commit_run_the_same_linters():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    entries = {hook["entry"] for repository in config["repos"] for hook in repository["hooks"]}
    assert {f".venv/bin/{' '.join(command)}" for command in LINTERS} < entries


def test_programs_beside_the_tests_import_only_names_that_exist():
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{name.name}"
        for path in [*sorted((ROOT / "tests").rglob("*.py")), ROOT / "docs" / "generate.py"]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dlcloud"
        for name in node.names
        if not is_importable(node.module, name.name)
    ]
    assert missing == []


def is_importable(module, name):
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError as error:
        # Of a framework that only instances have.
        return not (error.name or "").startswith("dlcloud")
