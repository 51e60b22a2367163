"""Feed inputs that coverage guides to what reads them: `python tests/fuzz/fuzz.py TARGET [OPTIONS]`.

TARGET is recipes, traces, records or arguments. OPTIONS are libFuzzer's, as `-max_total_time=600`, and a
folder that keeps the inputs that reached new code. It needs atheris, which no test does.
"""

import contextlib
import importlib
import json
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import atheris
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
PACKAGES = ("cli", "model", "recipe", "report", "store")
with atheris.instrument_imports(include=["dlcloud", "yaml"]):
    # Before commands import what they need: by then nothing would be instrumented.
    for package in map(importlib.import_module, [f"dlcloud.{name}" for name in PACKAGES]):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    from dlcloud.analysis.result import parse_record
    from dlcloud.model.errors import RecipeError
    from dlcloud.recipe.recipe import read_recipe
    from dlcloud.scheduling.simulation.traces import READERS
    from dlcloud.store.database import Database
    from tests.unit.hostile.test_hostile_inputs import (
        COMMANDS,
        RECIPES,
        WORDS,
        check,
        hostile_arguments,
        no_cloud,
        run,
    )
    from tests.unit.hostile.test_hostile_records import CONTROL, RECORDS, hostile_line, read_all
    from tests.unit.hostile.test_hostile_traces import hostile_trace, live_through

Target = Callable[[bytes], None]
SEEDS = 200
ENDINGS = list(READERS)


@contextlib.contextmanager
def recipes() -> Iterator[Target]:
    """A recipe's text: read, or refused with its line."""

    def read(data: bytes) -> None:
        with contextlib.suppress(RecipeError):
            read_recipe(data.decode("utf-8", "replace"), "r.yaml")

    yield read


@contextlib.contextmanager
def traces() -> Iterator[Target]:
    """The first byte chooses the format, the others are the trace."""

    def read(data: bytes) -> None:
        ending = ENDINGS[data[0] % len(ENDINGS)] if data else ""
        with contextlib.suppress(RecipeError):
            live_through(data[1:].decode("utf-8", "replace"), f"t.{ending}")

    yield read


@contextlib.contextmanager
def records() -> Iterator[Target]:
    """Lines of a run, stored and shown by every report."""
    with tempfile.TemporaryDirectory() as folder:
        database, numbers = Database(Path(folder) / "store.sqlite"), count()
        database.write("PRAGMA synchronous = OFF")

        def read(data: bytes) -> None:
            lines = [line for line in data.splitlines(keepends=True)[:12] if line.endswith(b"\n")]
            if any(parse_record(line.decode("utf-8", "replace")) is not None for line in lines):
                texts = read_all(database, f"r-{next(numbers)}", lines)
                assert not [text for text in texts if CONTROL.search(text)]

        yield read
        database.close()


@contextlib.contextmanager
def arguments() -> Iterator[Target]:
    """Words between zero bytes; the first byte chooses the command."""
    with contextlib.ExitStack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "a/b/home"
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        folder = opened.enter_context(no_cloud(patch, home))

        def end(data: bytes) -> None:
            path = COMMANDS[data[0] % len(COMMANDS)][0] if data else ()
            words = [word.decode("utf-8", "surrogateescape") for word in data[1:].split(b"\0")]
            check(run(patch, [*path, *words]), folder, repr(words))

        yield end


def seeds(target: str) -> Iterator[bytes]:
    """Yield inputs to begin with: bundled recipes, valid records, and what the generators make."""
    if target == "recipes":
        yield from (text.encode() for text in RECIPES)
        return
    for number in range(SEEDS):
        random = Random(number)
        if target == "traces":
            file, text = hostile_trace(random)
            ending = file.rpartition(".")[2]
            if ending in ENDINGS:
                yield bytes([ENDINGS.index(ending)]) + text.encode()
        elif target == "records":
            yield hostile_line(random)
        else:
            words = hostile_arguments(random)
            yield b"\0".join(word.encode("utf-8", "surrogateescape") for word in words)
    if target == "records":
        yield "".join(f"{json.dumps(record)}\n" for record in RECORDS).encode()


def dictionary(target: str) -> Iterator[str]:
    """Yield the words that the input consists of, for libFuzzer to insert."""
    if target == "arguments":
        yield from {name for _, names in COMMANDS for name in names}
    if target == "recipes":
        yield from {line.strip() for text in RECIPES for line in text.splitlines()}
    if target == "records":
        yield from {f'"{name}"' for record in RECORDS for name in record}
    yield from WORDS


def main() -> None:
    """Fuzz until libFuzzer's options end it, or an input fails."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        raise SystemExit(__doc__)
    target = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as name:
        corpus, words = Path(name) / "seeds", Path(name) / "words"
        corpus.mkdir()
        for number, seed in enumerate(seeds(target)):
            (corpus / str(number)).write_bytes(seed)
        escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in dictionary(target) if word)
        words.write_text("".join(f'"{word}"\n' for word in escaped))
        options = [f"-dict={words}", "-timeout=60", "-rss_limit_mb=4096", "-len_control=0"]
        # New inputs go to the first folder, the user's if one is named.
        with TARGETS[target]() as read:
            atheris.Setup([sys.argv[0], *options, *sys.argv[1:], str(corpus)], read)
            atheris.Fuzz()


TARGETS = {"recipes": recipes, "traces": traces, "records": records, "arguments": arguments}

if __name__ == "__main__":
    main()
