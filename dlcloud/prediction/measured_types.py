"""The table of what instance types are like, as text and as values."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from dlcloud.prediction.processors import PROCESSORS
from dlcloud.prediction.similarity import Traits

VERSION = 1
SCALE = 100
"""Logarithms are stored times this."""
_TRAITS = ("type", "processor", "cores", "threads_per_core", "sockets", "measured")
_KINDS = ("p", "g")
"""Of prompts and of generation, as columns name them."""
NOISES = ("noise_prompt", "noise_generation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A job that many types have run: tokens of a language model, read together or written one by one.

    Args:
        name: Its column.
        is_generation: True if bound by memory: each token is computed alone.
        file_bytes: Of the model.
        tokens: In one test.
    """

    name: str
    is_generation: bool
    file_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """One type.

    Args:
        traits: Its hardware.
        measured: False if estimated from specifications and from types like it.
        levels: The logarithm of each reference's throughput.
        noises: The standard deviation compared with types like it: where computing bounds, where memory does.
    """

    traits: Traits
    measured: bool
    levels: tuple[float, ...]
    noises: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TypeTable:
    """All types, with the day of the newest measurement (`as_of`, ISO)."""

    as_of: str
    references: tuple[Reference, ...]
    rows: Mapping[str, TypeRow]

    @cached_property
    def means(self) -> tuple[float, ...]:
        """The mean level of each reference."""
        return tuple(fmean(row.levels[j] for row in self.rows.values()) for j in range(len(self.references)))

    def shape(self, name: str) -> list[float]:
        """Return how far a type lies above the mean type in each reference, as logarithms."""
        levels = self.rows[name].levels
        return [level - mean for level, mean in zip(levels, self.means, strict=True)]


def parse_table(text: str) -> TypeTable:
    """Return the table of its text: two lines of comment, a head, a line a type."""
    lines = text.splitlines()
    as_of = lines[0].rpartition(" ")[2]
    reader = csv.reader(lines[2:])
    head = next(reader)
    references = tuple(_reference(column) for column in head[len(_TRAITS) + len(NOISES) :])
    rows = [_row(cells) for cells in reader]
    return TypeTable(as_of=as_of, references=references, rows={row.traits.name: row for row in rows})


def format_table(table: TypeTable) -> str:
    """Return the text of a table; what `parse_table` reads."""
    names = [
        f"{reference.name}:{_KINDS[reference.is_generation]}:{reference.file_bytes}:{reference.tokens}"
        for reference in table.references
    ]
    lines = [
        f"# dlcloud's table of instance types, version {VERSION}, measured until {table.as_of}",
        "# derived from measurements (c) Spare Cores, CC BY-SA 4.0: see types.LICENSE; logarithms times 100",
        ",".join([*_TRAITS, *NOISES, *names]),
    ]
    for name, row in sorted(table.rows.items()):
        traits = row.traits
        cells: list[object] = [name, traits.processor.name, traits.cores, traits.threads_per_core]
        cells += [traits.sockets, int(row.measured), *(round(noise * SCALE) for noise in row.noises)]
        cells += [round(level * SCALE) for level in row.levels]
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _reference(column: str) -> Reference:
    name, kind, size, tokens = column.split(":")
    return Reference(name=name, is_generation=kind == "g", file_bytes=int(size), tokens=int(tokens))


def _row(cells: Sequence[str]) -> TypeRow:
    name, processor, cores, threads, sockets, measured, prompt, generation, *levels = cells
    traits = Traits(
        name=name,
        processor=PROCESSORS[processor],
        cores=int(cores),
        threads_per_core=int(threads),
        sockets=int(sockets),
    )
    return TypeRow(
        traits=traits,
        measured=measured == "1",
        noises=(int(prompt) / SCALE, int(generation) / SCALE),
        levels=tuple(int(level) / SCALE for level in levels),
    )
