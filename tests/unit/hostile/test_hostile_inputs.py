"""Recipes and command lines that no one means: an error with a message, no traceback, and nothing is created.

DLCLOUD_FUZZ sets the number of recipes and of command lines (default 150 and 60), DLCLOUD_FUZZ_SEED the seed.
"""

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click
import pytest

from dlcloud.app.clouds import AccountClients
from dlcloud.cli import main as cli
from dlcloud.local.site import LocalSite
from dlcloud.model.errors import CredentialsError, DlcloudError, LocalCloudError, RecipeError
from dlcloud.recipe.document import DEEPEST, LONGEST_TEXT, MOST_EVENTS, parse
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.resources.texts import LARGEST_RECIPE, recipe_names, recipe_text

SHELL = (
    *("$(touch owned)", "`touch owned`", "; touch owned;", "| touch owned", "&& touch owned"),
    *("' ; touch owned ; '", '" ; touch owned ; "', "a\nb", "-rf", "--", "~root", "${HOME}", "*"),
    *("a b", "größe", "日本"),
)
WORDS = (
    *SHELL,
    *("", " ", "0", "-1", "1e9", "nan", "inf", "9" * 40, "3.10", "no", "null", "~", "x" * 300),
    *("\x1b[2J", "\x00", "c7i.xlarge", "p5.48xlarge", "spot", "on-demand", "aws", "local", "us-east-1"),
    *("auto", "ami-0", "ubuntu", "../../x", "/dev/null", "/nonexistent/x", ".", "missing.yaml"),
    *("json", "csv", "table", "fp32", "int8"),
)
YAML = (
    *"{}[]:#|>'\"?%@\n\t",
    *("- ", "  ", "&a ", "*a", "!!python/object:os.system ", "---\n", "\\U0011ffff", "<<: "),
)


_SCHEMA = Recipe.model_json_schema()
_OBJECTS = (_SCHEMA, *_SCHEMA.get("$defs", {}).values())
KEYS = sorted({name for schema in _OBJECTS for name in schema.get("properties", {})})
RECIPES = [recipe_text(name)[0] for name in recipe_names()]


def hostile_recipe(random: Random) -> str:
    """Return the text of a bundled recipe with a few changes, or one made of keys and values alone."""
    if random.random() < 0.3:
        return value(random, 0) if random.random() < 0.1 else mapping(random, 0)
    lines = random.choice(RECIPES).splitlines()
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(lines))
        line = lines[place]
        indent = line[: len(line) - len(line.lstrip())]
        key = line.partition(":")[0].strip()
        choice = random.randrange(6)
        if choice == 0:
            lines[place] = f"{indent}{key}: {value(random, 3)}"
        elif choice == 1:
            lines.insert(place, f"{indent}{random.choice(KEYS)}: {value(random, 3)}")
        elif choice == 2 and len(lines) > 1:
            del lines[place]
        elif choice == 3:
            lines.insert(place, line)
        elif choice == 4:
            cut = random.randrange(len(line) + 1)
            lines[place] = line[:cut] + random.choice((*YAML, *WORDS)) + line[cut:]
        else:
            lines[place] = random.choice(("", " ", "\t")) + line
    return "\n".join(lines)


def mapping(random: Random, depth: int) -> str:
    lines = (
        f"{'  ' * depth}{random.choice(KEYS)}: {value(random, depth)}" for _ in range(random.randrange(1, 6))
    )
    return "\n".join(lines)


def value(random: Random, depth: int) -> str:
    choice = random.randrange(8)
    if choice == 0 and depth < 3:
        return "\n" + mapping(random, depth + 1)
    if choice == 1:
        return "[" + ", ".join(random.choice(WORDS) for _ in range(random.randrange(4))) + "]"
    if choice == 2:
        return "{" + random.choice(KEYS) + ": " + random.choice(WORDS) + "}"
    if choice == 3:
        return "".join(random.choice((*YAML, *WORDS)) for _ in range(random.randrange(6)))
    if choice == 4:
        return chr(random.choice((random.randrange(32, 0xD800), random.randrange(0xE000, sys.maxunicode))))
    return random.choice((*WORDS, *(f'"{word}"' for word in SHELL)))


def options(command, path=()):
    """Yield every command with its options, subcommands included."""
    context = click.Context(command, info_name="dlcloud")
    if isinstance(command, click.Group):
        for name in command.list_commands(context) or cli.COMMANDS:
            yield from options(command.get_command(context, name), (*path, name))
        return
    names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    yield path, [name for name in names if name.startswith("-")]


COMMANDS = [found for found in options(cli.dlcloud) if found[0] != ("selftest",)]  # it starts commands


def hostile_arguments(random: Random) -> list[str]:
    """Return a command with options and words, mostly its own."""
    path, own = random.choice(COMMANDS)
    words = list(path)
    for _ in range(random.choice((0, 1, 1, 2, 3, 6))):
        chance = random.random()
        if chance < 0.5 and own:
            words.append(random.choice(own))
        elif chance < 0.6 and own:
            words.append(f"{random.choice(own)}={random.choice(WORDS)}")
        elif chance < 0.65:
            words.append(random.choice(random.choice(COMMANDS)[1] or ["--nothing"]))
        else:
            words.append(random.choice(WORDS))
    if random.random() < 0.05:
        random.shuffle(words)
    return [word.replace("\x00", "") for word in words]


EXITS = {0, 1, 2, 3, 4, 5, 130}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command line ended: its status, and what it printed."""

    status: int
    out: str
    err: str


class Output(io.StringIO):
    """Text with a buffer of bytes beside it, as standard streams have."""

    def __init__(self):
        super().__init__()
        self.buffer = io.BytesIO()

    def getvalue(self):
        return super().getvalue() + self.buffer.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def no_cloud(patch, home: Path) -> Iterator[Path]:
    """Keep every command from a cloud, in a home and a folder of its own; yields the folder.

    Args:
        patch: pytest's MonkeyPatch.
        home: Is made by the commands, beside the folder.
    """

    def refuse(*_):
        raise CredentialsError("there are no credentials", "aws configure")

    def not_started(*_, **__):
        raise LocalCloudError("not started in this test")

    patch.setattr(AccountClients, "get", refuse)
    for name in ("start", "stop"):
        patch.setattr(LocalSite, name, not_started)
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    patch.setenv("DLCLOUD_HOME", str(home))
    patch.setenv("DLCLOUD_CONFIG", str(home.with_name("config.yaml")))
    folder = home.parent / "c"
    folder.mkdir(parents=True)
    patch.chdir(folder)
    yield folder


def run(patch, words: Sequence[str]) -> Ended:
    """Run a command line as the program would be run."""
    out, err = Output(), Output()
    patch.setattr(sys, "argv", ["dlcloud", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run()
    return Ended(status=status, out=out.getvalue(), err=err.getvalue())


def check(ended: Ended, folder: Path, where: str) -> None:
    """Assert that a command line ended as documented, and that no word of it was run by a shell."""
    where = f"{where}\n{ended.out}{ended.err}"
    assert ended.status in EXITS, where
    assert "Traceback" not in ended.out + ended.err, where
    assert ended.status in {0, 130} or ended.err, where
    assert not any(folder.rglob("owned")), where


FUZZ = int(os.environ.get("DLCLOUD_FUZZ", "0"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))


@pytest.mark.timeout(7200)
def test_any_recipe_is_read_or_refused_with_its_line(record_property):
    counts, messages = Counter(), []
    for number in range(FUZZ or 150):
        text = hostile_recipe(Random(SEED * 1_000_003 + number))
        try:
            recipe = read_recipe(text, "r.yaml")
            counts["read"] += isinstance(recipe, Recipe)
        except RecipeError as error:
            counts["refused"] += 1
            messages.append(error.message)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, recipe {number}: {error!r}") from error
    assert counts["refused"]
    assert all(message.encode().startswith(b"r.yaml:") for message in messages), f"DLCLOUD_FUZZ_SEED={SEED}"
    record_property("recipes", dict(counts))


@pytest.mark.timeout(7200)
def test_any_command_line_ends_with_a_message_and_creates_nothing(tmp_path, monkeypatch, record_property):
    counts, home = Counter(), tmp_path / "a/b/home"
    with no_cloud(monkeypatch, home) as folder:
        for number in range(FUZZ or 60):
            words = hostile_arguments(Random(SEED * 1_000_003 + number))
            ended = run(monkeypatch, words)
            counts[ended.status] += 1
            check(ended, folder, f"DLCLOUD_FUZZ_SEED={SEED}, line {number}: {words}")
    record_property("exits", dict(counts))
    clusters = home / "clusters"
    assert not clusters.exists() or not [*clusters.iterdir()]
    assert Path("/dev/null").is_char_device(), "a command has replaced it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 50_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("\n".join("  " * depth + "a:" for depth in range(200)), "nested too deeply"),
        ("[" + "a," * 100_000 + "]", "too many values"),
        ("a: &a [x]\nb: [*a, *a]\n", "aliases"),
        ("x" * (LONGEST_TEXT + 1), f"at most {LONGEST_TEXT}"),
    ],
)
def test_bombs_are_refused_before_they_cost_time(text, message):
    (fault,) = parse(text).faults
    assert message in fault.message


def test_the_limits_of_yaml_are_far_from_any_recipe():
    lines = "".join(f"    VARIABLE_{number}: 'value {number}'\n" for number in range(2000))
    text = f"{recipe_text('quickstart')[0]}\nnothing:\n  deep:\n{lines}"
    assert [fault.message for fault in parse(text).faults] == []
    assert MOST_EVENTS > 4000
    assert DEEPEST > 10


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a/" * 3000, "\x00", ""])
def test_a_name_that_no_file_can_have_is_no_recipe(name):
    with pytest.raises(RecipeError, match="neither a file nor"):
        recipe_text(name)


@pytest.mark.parametrize(
    "content", [b"a: b\n" * 2_100_000, b"\xff" * 100, b"\x00" * 100], ids=["10 MB", "ff", "0"]
)
def test_a_file_that_is_no_recipe_is_refused_at_once(tmp_path, content):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(DlcloudError) as caught:
        read_recipe(recipe_text(str(path))[0], str(path))
    assert len(caught.value.message) < 1000
    assert path.stat().st_size < LARGEST_RECIPE or "at most 1 MiB" in caught.value.message
