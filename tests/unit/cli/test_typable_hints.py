"""Commands in messages and hints can be pasted: they exist, with their options and arguments."""

import ast
import re
from pathlib import Path

import click

from dlcloud.cli.main import COMMANDS, dlcloud

ROOT = Path(__file__).parents[3] / "dlcloud"
MENTION = re.compile(r"\bdlcloud (?P<name>[a-z-]+)(?P<rest>[^,;:()\"'`]*)")
VALUE = re.compile(r"[A-Z]|quickstart|dynamic-training|bash|zsh|fish|\S+\.(yaml|jsonl)")
NAMES = {("up", "--detach"), ("plan", ""), ("simulate", "")}
"""What names a command, and is not to be typed."""


def texts_of(path):
    """Yield the texts of a module that are no docstrings; values of f-strings are the word X."""
    tree = ast.parse(path.read_text("utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def mentions():
    for path in sorted(ROOT.rglob("*.py")):
        for text in texts_of(path):
            for found in MENTION.finditer(text):
                if found["name"] in COMMANDS:
                    yield str(path.relative_to(ROOT)), found["name"], found["rest"].strip()


def faults(name, rest):
    """Yield why `dlcloud NAME REST` cannot be typed as it stands."""
    command = dlcloud.get_command(click.Context(dlcloud), name)
    options = {"--help", "--"}
    options |= {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    words = rest.partition(" -- ")[0].split()
    yield from (f"no {word}" for word in words if word.startswith("-") and word not in options)
    needed = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    following = next((word for word in words if not word.startswith("-")), "")
    if needed and "--help" not in words and not VALUE.match(following):
        yield "its argument is missing"


def test_commands_in_messages_can_be_typed():
    found = {
        (f"{path}: dlcloud {name} {rest}", fault)
        for path, name, rest in mentions()
        if (name, rest) not in NAMES
        for fault in faults(name, rest)
    }
    assert not found
