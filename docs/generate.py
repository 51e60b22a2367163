"""Write the generated blocks of the reference pages from the code that they describe.

    python docs/generate.py            # rewrite what is stale
    python docs/generate.py --check    # name what is stale, and fail

A block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; the text around it is written by
hand. `tests/unit/test_docs.py` runs the check.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness import benchmark
from dlcloud.cli.main import COMMANDS, dlcloud
from dlcloud.model import errors
from dlcloud.recipe.recipe import recipe_schema
from dlcloud.results.selftest import RISKS
from dlcloud.results.selftest_limits import NOT_SHOWN

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def commands() -> Iterator[str]:
    """Yield a section for each command and subcommand: what it does, and its options."""
    context = click.Context(dlcloud, info_name="dlcloud")
    yield from _table(
        ("command", "effect"), [(f"[{name}](#dlcloud-{name})", COMMANDS[name]) for name in COMMANDS]
    )
    for name in dlcloud.list_commands(context):
        command = dlcloud.get_command(context, name)
        assert command is not None
        yield from _command(command, click.Context(command, info_name=name, parent=context), level=2)


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    yield ""
    pieces = command.collect_usage_pieces(context)
    yield f"`{' '.join([context.command_path, *pieces])}`"
    yield ""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        literal = paragraph.startswith("\b\n")
        yield f"```text\n{paragraph[2:]}\n```" if literal else paragraph.strip()
        yield ""
    records = [parameter.get_help_record(context) for parameter in command.params]
    yield from _table(
        ("option", "meaning"), [(f"`{record[0]}`", record[1]) for record in records if record and record[1]]
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, click.Context(inner, info_name=name, parent=context), level + 1)


def recipe() -> Iterator[str]:
    """Yield a table of keys for each part of a recipe, from its JSON Schema."""
    schema = recipe_schema()
    yield from _part("Top level", schema, schema)
    yield from _parts(schema, schema, path="")


def _parts(part: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for key, value in part["properties"].items():
        for inner in _objects(value, schema):
            yield from _part(f"`{path}{key}`", inner, schema)
            yield from _parts(inner, schema, f"{path}{key}.")


def _objects(value: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts that a key's value may be, or may be a list of."""
    if "$ref" in value:
        value = schema["$defs"][value["$ref"].rpartition("/")[2]]
        if "properties" in value:
            yield value
        return
    items = [value["items"]] if "items" in value else []
    for alternative in [*value.get("anyOf", ()), *value.get("oneOf", ()), *items]:
        yield from _objects(alternative, schema)


def _part(title: str, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield from [part["description"], ""] if "description" in part else []
    required = part.get("required", ())
    rows = [
        (
            f"`{key}`",
            _type(value, schema),
            "required" if key in required else _default(value),
            _meaning(value, schema),
        )
        for key, value in part["properties"].items()
    ]
    yield from _table(("key", "value", "default", "meaning"), rows)


def _type(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the values that a key takes, for people: `text`, `number from 1 to 1000`, `list of text`."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        inner = schema["$defs"][name]
        return "mapping" if "properties" in inner else _type(inner, schema)
    alternatives = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    if alternatives:
        kinds = [_type(alternative, schema) for alternative in alternatives]
        # A decimal number may be written as a number or as text of a certain pattern.
        kinds = [kind for kind in dict.fromkeys(kinds) if kind != "nothing"]
        return kinds[0] if kinds[0].startswith("number") and kinds[1:] == ["text"] else " or ".join(kinds)
    if "enum" in value or "const" in value:
        return ", ".join(f"`{word}`" for word in value.get("enum", [value.get("const")]))
    kind = value.get("type")
    if kind == "array":
        return f"list of {_plural(_type(value['items'], schema))}"
    if kind == "object":
        return "mapping of names to text"
    names = {"integer": "whole number", "number": "number", "boolean": "`yes` or `no`", "null": "nothing"}
    return names.get(kind, "text") + _bounds(value) if isinstance(kind, str) else "text"


def _plural(kind: str) -> str:
    return {"mapping": "mappings"}.get(kind, kind)


def _bounds(value: dict[str, Any]) -> str:
    lower = value.get("minimum", value.get("exclusiveMinimum"))
    upper = value.get("maximum")
    words = f" {'above' if 'exclusiveMinimum' in value else 'from'} {lower:g}" if lower is not None else ""
    return words + (f" to {upper:g}" if upper is not None else "")


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default in (None, "", [], {}) or isinstance(default, dict):
        return ""
    return f"`{'yes' if default else 'no'}`" if isinstance(default, bool) else f"`{default}`"


def _meaning(value: dict[str, Any], schema: dict[str, Any]) -> str:
    if "description" in value or "$ref" not in value:
        return str(value.get("description", ""))
    return str(schema["$defs"][value["$ref"].rpartition("/")[2]].get("description", ""))


def benchmarks() -> Iterator[str]:
    """Yield a section for each bundled benchmark: its summary and its own options, then the common ones."""
    for entry in BENCHMARKS.values():
        yield f"## {entry.name}"
        yield ""
        yield entry.summary
        yield ""
        yield from _options(entry.options)
        rounds = ", and [those of rounds](#options-of-rounds)" if entry.rounds else ""
        yield f"[Options of every benchmark](#options-of-every-benchmark) apply{rounds}."
        if entry.defaults:
            defaults = (
                f"`{name}` {'unlimited' if value is None else value}"
                for name, value in entry.defaults.items()
            )
            yield f"Defaults of its own: {', '.join(defaults)}."
        yield ""
    yield "## Options of every benchmark"
    yield ""
    yield from _options(benchmark.COMMON)
    yield "## Options of rounds"
    yield ""
    yield from _options(benchmark.ROUNDS)


def _options(options: Iterable[benchmark.Option]) -> Iterator[str]:
    rows = [(f"`{option.name}`", _values(option), _option_default(option), option.help) for option in options]
    yield from _table(("option", "values", "default", "meaning"), rows)


def _values(option: benchmark.Option) -> str:
    """Return the values that an option takes; `...` where it takes several."""
    if option.flag:
        return "none"
    values = ", ".join(f"`{choice}`" for choice in option.choices) or (option.metavar or "text")
    return f"{values} ..." if option.many else values


def _option_default(option: benchmark.Option) -> str:
    values = option.default if isinstance(option.default, tuple) else (option.default,)
    written = " ".join(f"`{value}`" for value in values if value not in {None, ""})
    return option.default_help or ("" if option.flag else written)


def exit_codes() -> Iterator[str]:
    """Yield the errors with their exit codes, from the tree of errors."""
    found = [errors.DlcloudError]
    for error in found:
        found += error.__subclasses__()
    rows = sorted(
        (error.exit_code, f"`{error.__name__}`", (error.__doc__ or "").splitlines()[0].rstrip("."))
        for error in found[1:]
        if error.__module__ == errors.__name__
    )
    yield from _table(("exit code", "error", "meaning"), [(str(code), *rest) for code, *rest in rows])


def selftest() -> Iterator[str]:
    """Yield what the self-test shows, row by row, and what it cannot show."""
    rows = [(number, claim, looked_at) for number, claim, looked_at, _ in RISKS]
    yield from _table(("row", "what is to hold", "what the self-test looks at"), rows)
    yield "## What it cannot show"
    yield ""
    yield from _table(("not shown", "because", "what shows it"), list(NOT_SHOWN))


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "recipe": recipe,
    "benchmarks": benchmarks,
    "exit-codes": exit_codes,
    "selftest": selftest,
}


def _content(name: str) -> str:
    return "\n".join(BLOCKS[name]()).strip()


def refreshed(text: str) -> str:
    """Return a page with its generated blocks as the code has them now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{_content(block[2])}\n\n{block[3]}", text)


def main() -> int:
    """Rewrite the stale pages, or name them with --check."""
    stale = [
        page
        for page in sorted(DOCS.glob("*.md"))
        if refreshed(page.read_text("utf-8")) != page.read_text("utf-8")
    ]
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"docs/{page.name} is stale\nhint: python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
        print(f"docs/{page.name} is rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
