"""Recipes and command lines as no one means them: made of the words that dlcloud knows, and mutated."""

import sys
from random import Random

import click

from dlcloud.cli import main as cli
from dlcloud.recipe.recipe import Recipe
from dlcloud.resources.texts import recipe_names, recipe_text

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
