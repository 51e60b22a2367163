"""Write the generated blocks of the reference pages from the code that they describe.

    python docs/generate.py            # rewrite what is stale
    python docs/generate.py --check    # name what is stale, and fail

A block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; the text around it is written by
hand. `tests/unit/test_docs.py` runs the check.
"""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import agents
import click
import python_api
import recipe_keys
from tables import listing

from dlcloud.analysis.selftest import RISKS
from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness import benchmark
from dlcloud.cli.main import dlcloud

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = (*sorted(DOCS.glob("*.md")), ROOT / "llms.txt", ROOT / "templates" / "skill.md")
SKILL = ROOT / ".claude" / "skills" / "dlcloud" / "SKILL.md"
"""The skill where agents that work in a clone look: the text that `dlcloud skill` prints."""

SHARED_BY = 2
"""An option that this many commands have, in the same words, is explained once."""
COMMON = ("--output", "--profile", "--verbose")
"""Options of nearly every command: a section does not name them."""
SHARED = {
    "Recipe options": "cloud type region market count setting env secret",
    "Hardware options": "gpu gpu-memory-gib vcpus memory-gib architecture instruction-set max-usd-per-hour "
    "exclude",
    "Filters": "benchmark case cluster since until type setting cloud",
    "Further options": "",
}
"""Shared options by what they are for; an option with two meanings is a filter if it begins with Only."""
LONG = re.compile(r"--[a-z-]+")
RANGE = re.compile(r"(?<=\[)(default: [^;\]]*); [^\]]*(?=\])| \[[^\]:]*[<>]=[^\]]*\]")
"""The limits of a number, which `--help` and the message of a wrong one state."""
BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def commands() -> Iterator[str]:
    """Yield a section for each command and subcommand: what it does, and its options."""
    context = click.Context(dlcloud, info_name="dlcloud")
    found = list(_below(dlcloud, context))
    counts = Counter(record for command, inner in found for record in _records(command, inner))
    shared = {record: _group(record) for record, count in counts.items() if count >= SHARED_BY}
    for heading in SHARED:
        yield f"## {heading}"
        yield ""
        yield from _listing(record for record, group in shared.items() if group == heading)
    common = ", ".join(f"`{name}`" for name in COMMON)
    yield f"Nearly every command takes {common}. Sections name the other ones."
    yield ""
    for command, inner in found:
        yield from _command(command, inner, shared)


def _long(record: tuple[str, str]) -> str:
    """Return the long name of an option, or its only one."""
    return (LONG.findall(record[0]) or [record[0]])[-1]


def _group(record: tuple[str, str]) -> str:
    """Return the heading below which a shared option stands."""
    name, is_filter = _long(record)[2:], record[1].startswith(("Only ", "Started "))
    named = (
        heading
        for heading, names in SHARED.items()
        if name in names.split() and (heading == "Filters") == is_filter
    )
    return next(named, "Further options")


def _below(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield command, inner
        if isinstance(command, click.Group):
            yield from _below(command, inner)


def _records(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    records = (parameter.get_help_record(context) for parameter in command.params)
    return [record for record in records if record and record[1]]


def _command(
    command: click.Command, context: click.Context, shared: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield f"{'#' * len(context.command_path.split())} `{' '.join([context.command_path, *pieces])}`"
    yield ""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        literal = paragraph.startswith("\b\n")
        yield f"```text\n{paragraph[2:]}\n```" if literal else paragraph.strip()
        yield ""
    records = _records(command, context)
    if own := [record for record in records if record not in shared and _long(record) not in COMMON]:
        yield from _listing(own)
    names: list[str] = []
    for heading in SHARED:
        group = [record for record, its in shared.items() if its == heading and record in records]
        whole = [record for record, its in shared.items() if its == heading]
        if len(group) > 1 and group == whole:
            names.append(f"[{heading.lower()}](#{heading.lower().replace(' ', '-')})")
        else:
            names += [f"`{name}`" for record in group if (name := _long(record)) not in COMMON]
    if names:
        yield f"Also {', '.join(names)}."
        yield ""


def _listing(records: Iterable[tuple[str, str]]) -> Iterator[str]:
    return listing((name, "", RANGE.sub(r"\1", meaning)) for name, meaning in records)


def benchmarks() -> Iterator[str]:
    """Yield a section for each bundled benchmark: its own options, then the common ones."""
    for entry in BENCHMARKS.values():
        yield f"## {entry.name}"
        yield ""
        yield from _options(entry.options)
        if entry.defaults:
            defaults = (
                f"`{name}` {'unlimited' if value is None else value}"
                for name, value in entry.defaults.items()
            )
            yield f"Its defaults: {', '.join(defaults)}."
            yield ""
    yield "## Options of every benchmark"
    yield ""
    yield from _options(benchmark.COMMON)
    yield "## Options of rounds"
    yield ""
    yield from _options(benchmark.ROUNDS)


def _options(options: Iterable[benchmark.Option]) -> Iterator[str]:
    return listing((option.name, _values(option), option.help) for option in options)


def _values(option: benchmark.Option) -> str:
    """Return the values that an option takes, and the one that it has if it is left out."""
    choices = " ".join(f"`{choice}`" for choice in option.choices) or (option.metavar or "")
    default = _option_default(option)
    return "; ".join(filter(None, (choices, f"default {default}" if default else "")))


def _option_default(option: benchmark.Option) -> str:
    values = option.default if isinstance(option.default, tuple) else (option.default,)
    written = " ".join(f"`{value}`" for value in values if value not in {None, ""})
    return option.default_help or ("" if option.flag else written)


def selftest() -> Iterator[str]:
    """Yield what the self-test shows, row by row."""
    yield from listing(
        (number, "not shown" if looked_at == "nothing" else looked_at, claim)
        for number, claim, looked_at, _ in RISKS
    )


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "recipe": recipe_keys.recipe,
    "benchmarks": benchmarks,
    "exit-codes": agents.exit_codes,
    "selftest": selftest,
    "train-arguments": python_api.train_arguments,
    "train-callbacks": python_api.train_callbacks,
    "train-outcome": python_api.train_outcome,
    "report-functions": python_api.report_functions,
    "agent-commands": agents.commands,
    "agent-exit-codes": agents.exit_codes,
    "agent-recipes": agents.recipes,
    "agent-keys": agents.keys,
    "pages": agents.pages,
}


def _content(name: str) -> str:
    return "\n".join(BLOCKS[name]()).strip()


def refreshed(text: str) -> str:
    """Return a page with its generated blocks as the code has them now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{_content(block[2])}\n\n{block[3]}", text)


def contents() -> dict[Path, str]:
    """Return every page as the code has it now."""
    fresh = {page: refreshed(page.read_text("utf-8")) for page in PAGES}
    return {**fresh, SKILL: fresh[ROOT / "templates" / "skill.md"]}


def main() -> int:
    """Rewrite the stale pages, or name them with --check."""
    stale = {
        page: text
        for page, text in contents().items()
        if not page.exists() or text != page.read_text("utf-8")
    }
    for page, text in stale.items():
        if "--check" in sys.argv[1:]:
            print(f"{page.relative_to(ROOT)} is stale\nhint: python docs/generate.py", file=sys.stderr)
            continue
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, "utf-8")
        print(f"{page.relative_to(ROOT)} is rewritten")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
