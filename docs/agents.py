"""The blocks of what is written for agents: the skill, and llms.txt."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
import recipe_keys
from tables import table

from dlcloud.app.recipes import recipes_report
from dlcloud.cli.main import COMMANDS, dlcloud
from dlcloud.model import errors
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text

DOCS = Path(__file__).parent
COMMON = frozenset({"--help", "--verbose", "--profile"})
"""Options of nearly every command, which the skill describes once."""


def commands() -> Iterator[str]:
    """Yield a table of all commands with their arguments and the names of their options."""
    context = click.Context(dlcloud, info_name="dlcloud")
    rows = []
    for name, effect in COMMANDS.items():
        command = dlcloud.get_command(context, name)
        assert command is not None
        rows += _rows(command, click.Context(command, info_name=name, parent=context), effect)
    yield from table(("command", "effect", "options"), rows)


def _rows(command: click.Command, context: click.Context, effect: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            inner_context = click.Context(inner, info_name=name, parent=context)
            yield from _rows(inner, inner_context, inner.get_short_help_str(200))
        return
    words = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    options = [
        parameter.opts[-1]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.opts[-1] not in COMMON
    ]
    yield f"`{' '.join([context.command_path, *words])}`", effect, " ".join(options)


def exit_codes() -> Iterator[str]:
    """Yield a table of the exit codes with the kinds of errors that have them."""
    found = [errors.DlcloudError]
    for error in found:
        found += error.__subclasses__()
    kinds = sorted(
        (error.exit_code, error.__name__) for error in found[1:] if error.__module__ == errors.__name__
    )
    rows = [("0", "done", "")]
    meanings = {
        1: "failed here: the store, the dlcloud home, the local EC2; or what was asked about is not so",
        2: "the recipe or an argument is at fault; nothing was touched",
        3: "the cloud refused: credentials, capacity, quota, budget",
        4: "an instance, or the program on it, failed",
        5: "partly done: the message says what is missing",
    }
    for code, group in groupby(kinds, key=lambda kind: kind[0]):
        rows.append((str(code), meanings[code], ", ".join(name for _, name in group)))
    interrupted = "interrupted; launched instances have been terminated, or the message names what is left"
    rows += [("70", "a bug of dlcloud; the message names its log", ""), ("130", interrupted, "")]
    yield from table(("exit code", "meaning", "`error.kind`"), rows)


def recipes() -> Iterator[str]:
    """Yield a table of the bundled recipes."""
    texts = {name: recipe_text(name)[0] for name in recipe_names()}
    report = recipes_report({name: (read_recipe(text, name), text) for name, text in texts.items()})
    yield from table(
        ("recipe", "cloud", "what it does"),
        [(f"`{row['recipe']}`", str(row["cloud"]), str(row["about"])) for row in report.records],
    )


def keys() -> Iterator[str]:
    """Yield the keys of a recipe, a line for each part."""
    yield from recipe_keys.compact()
    yield ""


def pages() -> Iterator[str]:
    """Yield a link to each page with its first sentence."""
    for page in sorted(DOCS.glob("*.md")):
        text = re.sub(r"<!--.*?-->|```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        title, _, body = text.strip().partition("\n")
        about = "what is new" if page.name == "CHANGELOG.md" else _first_sentence(body)
        yield f"- [{title.lstrip('# ')}](docs/{page.name}): {about}"
    yield ""


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page, or of the list that it begins with."""
    paragraphs = (re.sub(r"^- ", "", part) for part in text.strip().split("\n\n"))
    first = next(part for part in paragraphs if re.match(r"[\w`\[*]", part))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(first.partition("\n- ")[0].split()))
    return re.split(r"(?<=[\w`)])\. ", plain, maxsplit=1)[0].rstrip(".:")
