"""What instance types are like: their processors, how alike two types are, and the table of measured speeds.

The sheets of processors were written down without their sources at hand and are unverified, except what
`tests/performance/type_table.py` checks against the base clocks that types stated of themselves (Spare
Cores): the clocks of the 29 x86 processors are 1.10 to 1.73 times their base clocks. Estimates are the
all-core clock of processors that are made for AWS alone, and the operations of one core in a cycle (dense
8-bit integer dot products, as a power of two; AMX is not counted: the recorded programs did not use it).
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import exp, log2
from statistics import fmean

from dlcloud.model.instance import is_burstable


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor: its clock with all cores busy; memory bandwidth, cores and L3 cache of a socket."""

    name: str
    design: str
    vendor: str
    log2_operations: float
    ghz: float
    memory_gb_s: float
    cores: int
    l3_mb: int


_SHEETS = (
    ("7571", "zen1", "amd", 4.0, 2.7, 170, 32, 64),
    ("7R32", "zen2", "amd", 5.0, 3.3, 205, 48, 192),
    ("7R13", "zen3", "amd", 5.0, 3.6, 205, 48, 192),
    ("9R14", "zen4", "amd", 6.0, 3.7, 460, 96, 384),
    ("9R45", "zen5", "amd", 6.6, 4.5, 576, 96, 384),
    ("9R05", "zen5", "amd", 6.6, 5.0, 576, 64, 384),
    ("E5-2650", "snb", "intel", 3.6, 2.4, 51, 8, 20),
    ("E5-2665", "snb", "intel", 3.6, 2.8, 51, 8, 20),
    ("E5-2651 V2", "ivb", "intel", 3.6, 2.2, 59, 12, 30),
    ("E5-2670 V2", "ivb", "intel", 3.6, 2.9, 59, 10, 25),
    ("E5-2680 V2", "ivb", "intel", 3.6, 3.1, 59, 10, 25),
    ("E5-2676 V3", "hsw", "intel", 5.0, 2.8, 68, 12, 30),
    ("E5-2666 V3", "hsw", "intel", 5.0, 3.2, 68, 10, 25),
    ("E7-8880 V3", "hsw", "intel", 5.0, 2.6, 85, 18, 45),
    ("E5-2686 V4", "bdw", "intel", 5.0, 2.7, 77, 18, 45),
    ("8175M", "skx", "intel", 5.3, 3.1, 128, 24, 33),
    ("8176M", "skx", "intel", 5.3, 2.8, 128, 28, 38),
    ("8124M", "skx", "intel", 5.3, 3.4, 128, 18, 25),
    ("8151", "skx", "intel", 5.3, 4.0, 128, 12, 25),
    ("8259CL", "clx", "intel", 5.5, 3.1, 141, 24, 36),
    ("8275CL", "clx", "intel", 5.5, 3.6, 141, 24, 36),
    ("8223CL", "clx", "intel", 5.5, 3.6, 141, 18, 25),
    ("8280L", "clx", "intel", 5.5, 3.3, 141, 28, 38),
    ("8252C", "clx", "intel", 5.5, 4.5, 141, 12, 25),
    ("8375C", "icx", "intel", 5.9, 3.5, 205, 32, 54),
    ("8488C", "spr", "intel", 6.2, 3.2, 307, 48, 105),
    ("8477C", "spr", "intel", 6.2, 3.2, 307, 48, 105),
    ("6455B", "spr", "intel", 6.2, 3.9, 307, 32, 60),
    ("8559C", "emr", "intel", 6.2, 3.2, 358, 48, 320),
    ("6975P", "gnr", "intel", 6.2, 3.9, 537, 96, 480),
    ("CORTEX-A72", "a72", "arm", 3.0, 2.3, 38, 16, 8),
    ("NEOVERSE-N1", "n1", "arm", 5.0, 2.5, 205, 64, 32),
    ("NEOVERSE-V1", "v1", "arm", 5.9, 2.6, 307, 64, 32),
    ("NEOVERSE-V2", "v2", "arm", 5.9, 2.8, 537, 96, 36),
    ("NEOVERSE-V3", "v3", "arm", 6.0, 3.3, 720, 192, 192),
)
PROCESSORS = {
    name: Processor(
        name=name,
        design=design,
        vendor=vendor,
        log2_operations=operations,
        ghz=ghz,
        memory_gb_s=bandwidth,
        cores=cores,
        l3_mb=l3,
    )
    for name, design, vendor, operations, ghz, bandwidth, cores, l3 in _SHEETS
}


def find_processor(model: str) -> Processor | None:
    """Return the data sheet of a processor by the model that `lscpu` prints; None for an unlisted one."""
    upper = model.upper()
    return next((sheet for name, sheet in PROCESSORS.items() if name in upper), None)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The hardware of a type that its speed depends on; `cores` are physical ones."""

    name: str
    processor: Processor
    cores: int
    threads_per_core: int
    sockets: int

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_burstable(self) -> bool:
        """True for a type that is slowed down when its CPU credits are spent."""
        return is_burstable(self.name)

    @property
    def is_metal(self) -> bool:
        return ".metal" in self.name

    @cached_property
    def log_cores(self) -> float:
        return log2(self.cores)

    @cached_property
    def log_compute(self) -> float:
        return self.processor.log2_operations + log2(self.processor.ghz)

    @cached_property
    def log_core_bandwidth(self) -> float:
        return log2(self.processor.memory_gb_s / self.processor.cores)

    @cached_property
    def features(self) -> tuple[float, ...]:
        """Standardized: cores, compute, clock, bandwidth and cache of the type's share, and kind of type."""
        processor = self.processor
        share = self.cores / processor.cores
        bandwidth = processor.memory_gb_s * min(max(1.0, share), 1.5 * min(1.0, share))
        cache = processor.l3_mb * min(1.0, share)
        return (
            (self.log_cores - 3.6) / 2.0,
            (self.log_compute - 7.3) / 0.75,
            (log2(processor.ghz) - 1.65) / 0.23,
            (log2(bandwidth) - 6.0) / 1.9,
            (log2(cache) - 4.0) / 2.2,
            2.0 * self.is_burstable,
            float(self.is_metal),
            self.threads_per_core - 1.5,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The variances that two types share by what they have in common.

    Source: on the data that `tests/performance/prediction.py` reads, greatest marginal likelihood of LEVELS,
    least error by DEVIATIONS.
    """

    features: tuple[float, ...]
    size: float
    sheet: float
    sheet_size: float
    design: float
    same_size: float
    metal: float
    processor: float
    family: float
    arm: float
    sockets: float


LEVELS = Weights(
    features=(0.046, 0.046, 0.046, 0.046, 0.046, 0.05075, 0.046, 0.046),
    size=0.5,
    sheet=0.038,
    sheet_size=0.019,
    design=0.025,
    same_size=0.0072,
    metal=0.054,
    processor=0.012,
    family=0.005,
    arm=0.072,
    sockets=0.011,
)
"""Of one job's throughput from type to type."""
DEVIATIONS = Weights(
    features=(0.023, 0.0077, 0.069, 0.023, 0.069, 0.0254, 0.023, 0.0),
    size=0.68,
    sheet=0.0045,
    sheet_size=0.033,
    design=0.0285,
    same_size=0.0036,
    metal=0.0015,
    processor=0.0,
    family=0.0046,
    arm=0.179,
    sockets=0.022,
)
"""Of what a job does otherwise than the references that it resembles."""


def covariance(one: Traits, other: Traits, weights: Weights) -> float:
    """Return the variance that two types share."""
    apart = one.log_cores - other.log_cores
    size = exp(-0.125 * apart * apart)
    near = exp(-0.2222 * apart * apart)
    sheet = exp(
        -2.0 * (one.log_compute - other.log_compute) ** 2
        - 2.0 * (one.log_core_bandwidth - other.log_core_bandwidth) ** 2
    )
    total = sum(w * a * b for w, a, b in zip(weights.features, one.features, other.features, strict=True))
    total += weights.size * size + sheet * (weights.sheet + weights.sheet_size * near)
    if (one.processor.vendor == "arm") == (other.processor.vendor == "arm"):
        total += weights.arm * near
    if one.processor.design == other.processor.design:
        total += _of_one_design(one, other, weights, near)
    return total + weights.family * (one.family == other.family)


def _of_one_design(one: Traits, other: Traits, weights: Weights, near: float) -> float:
    total = weights.design
    total += weights.metal * near * (one.is_metal == other.is_metal)
    total += weights.sockets * near * (one.sockets == other.sockets)
    if one.processor.name == other.processor.name:
        alike = one.cores == other.cores and one.threads_per_core == other.threads_per_core
        total += weights.processor + weights.same_size * alike
    return total


VERSION = 2
SCALE = 100
"""Logarithms are stored times this."""
_TRAITS = ("type", "processor", "cores", "threads_per_core", "sockets", "measured")
NOISES = ("noise_prompt", "noise_generation", "noise_program")


RULE = "rule"
"""The program of references that were computed from hardware: cores times clock, and the clock."""


class Kind(StrEnum):
    """What a job is, as columns name it: of a language model, or another program on one or all threads."""

    PROMPT = "p"
    GENERATION = "g"
    ONE_THREAD = "o"
    ALL_THREADS = "a"

    @property
    def is_language(self) -> bool:
        return self in {Kind.PROMPT, Kind.GENERATION}

    @property
    def noise(self) -> int:
        """The place of its deviation among those of a type."""
        return {Kind.PROMPT: 0, Kind.GENERATION: 1}.get(self, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A job that many types have run: tokens of a language model, or a test of another program.

    Args:
        name: Its column; of other programs it begins with the program's.
        kind: Tokens that are generated one by one are bound by memory.
        file_bytes: Of the language model, else 0.
        tokens: In one test of a language model, else 0.
    """

    name: str
    kind: Kind
    file_bytes: int = 0
    tokens: int = 0

    @property
    def program(self) -> str:
        """What ran, of jobs that are no language models."""
        return self.name.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """One type.

    Args:
        traits: Its hardware.
        measured: False if estimated from specifications and from types like it.
        levels: The logarithm of each reference's throughput.
        noises: The standard deviation compared with types like it, in each of `NOISES`.
    """

    traits: Traits
    measured: bool
    levels: tuple[float, ...]
    noises: tuple[float, ...]


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
        f"{reference.name}:{reference.kind}:{reference.file_bytes}:{reference.tokens}"
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
    return Reference(name=name, kind=Kind(kind), file_bytes=int(size), tokens=int(tokens))


def _row(cells: Sequence[str]) -> TypeRow:
    name, processor, cores, threads, sockets, measured, *numbers = cells
    noises, levels = numbers[: len(NOISES)], numbers[len(NOISES) :]
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
        noises=tuple(int(noise) / SCALE for noise in noises),
        levels=tuple(int(level) / SCALE for level in levels),
    )
