"""The linters and the type checker, as tests: one command runs everything."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
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
        if not is_bound(node.module, name.name)
    ]
    assert missing == []


def is_bound(module, name):
    """Return True if a module has a name. It is not imported: libraries of some crash next to others."""
    place = ROOT.joinpath(*module.split("."))
    if place.joinpath(name).is_dir() or place.joinpath(f"{name}.py").is_file():
        return True
    path = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
    return path.is_file() and name in bound_names(path)


@cache
def bound_names(path):
    """Return what the statements of a module bind, those of its functions and classes excepted."""
    names, statements = set(), [ast.parse(path.read_text("utf-8"))]
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        if isinstance(statement, ast.Name):
            names.add(statement.id)
        if isinstance(statement, ast.alias):
            names.add(statement.asname or statement.name.partition(".")[0])
        statements += ast.iter_child_nodes(statement)
    return names
