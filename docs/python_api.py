"""Blocks of pages about what scripts import: `dlcloud.trainer` and `dlcloud_report`."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from tables import listing

import dlcloud.trainer
import dlcloud_report
from dlcloud.trainer import read_signature

TRAINER = Path(dlcloud.trainer.__file__).parent


def train_arguments() -> Iterator[str]:
    """Yield a table of the arguments of `train`."""
    signature, text = read_signature("training", "train")
    meanings = _entries(text, "Args")
    rows = [
        (item.name, f"`{item.annotation}`{_default(item)}".replace(" | None", ""), meanings.pop(item.name))
        for item in signature.parameters.values()
    ]
    assert not meanings, meanings
    yield from listing(rows)


def train_callbacks() -> Iterator[str]:
    """Yield a table of the types of the functions that `train` takes: how each is called, and with what."""
    rows = [
        (name, *text.partition(": ")[::2])
        for name, text in _texts(TRAINER / "job.py").items()
        if text.startswith("`")
    ]
    yield from listing(rows)


def train_outcome() -> Iterator[str]:
    """Yield a table of what `train` returns."""
    tree = ast.parse((TRAINER / "loop.py").read_text("utf-8"))
    outcome = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Outcome")
    meanings = _entries(ast.get_docstring(outcome) or "", "Attributes")
    types = {
        node.target.id: ast.unparse(node.annotation)
        for node in outcome.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    yield from listing((f"outcome.{name}", f"`{types[name]}`", meaning) for name, meaning in meanings.items())


def report_functions() -> Iterator[str]:
    """Yield a table of the functions of `dlcloud_report`."""
    functions: list[Callable[..., object]] = [
        getattr(dlcloud_report, name) for name in dlcloud_report.__all__
    ]
    rows = []
    for function in functions:
        summary, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        raises = "".join(f" {name}: {meaning}" for name, meaning in _entries(rest, "Raises").items())
        signature = f"dlcloud_report.{function.__name__}{inspect.signature(function)}"
        rows.append((signature, "", summary + raises))
    yield from listing(rows)


def _default(item: inspect.Parameter) -> str:
    if item.default is None:
        return ""
    return ", required" if item.default is item.empty else f", default `{item.default!r}`"


def _entries(text: str, title: str) -> dict[str, str]:
    """Return the entries of a section of a docstring, such as `Args`, by name."""
    section = text.partition(f"{title}:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def _texts(path: Path) -> dict[str, str]:
    """Return the text below each name of a module, as attributes are documented."""
    body = ast.parse(path.read_text("utf-8")).body
    return {
        node.targets[0].id: " ".join(str(text.value.value).split())
        for node, text in pairwise(body)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
