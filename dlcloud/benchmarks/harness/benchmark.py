"""A benchmark program as a table: its options, needs and packages.

Parsers, the catalog that the launcher reads, and the documentation are made from it.
"""

import argparse
import fnmatch
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .case import Limits
from .hardware import X86_BF16_FLAGS

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"

Parameters = Mapping[str, str | list[str]]
"""Values of parameters, as in a recipe; a list for several."""

OUTPUT_ITSELF = Path()
"""The value of `--resume` without a file."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a program, which is also a parameter in a recipe."""

    name: str  # without the dashes
    help: str  # its meaning, without its default
    _: KW_ONLY
    type: Callable[[str], Any] = str  # converts a value from text
    default: Any = None  # its default; of several values, a tuple
    default_help: str = ""  # text for the default, if its value does not explain itself
    choices: tuple[str, ...] = ()  # the values allowed; all if empty
    metavar: str | None = None  # placeholder of its value in the help, if the type has none in METAVARS
    many: bool = False  # takes several values
    optional: Any = None  # its value if none is given; None if it needs one
    flag: bool = False  # takes no value
    required: bool = False
    group: str = ""  # heading under which the help shows it
    file: bool = False  # is the path of a file of the user's own
    # Whether its values only select cases: a case is the same whatever other values there are, so that
    # `--resume` need not repeat them.
    selects: bool = False

    @property
    def full_help(self) -> str:
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        default = self.default_help or " ".join(str(value) for value in values if value not in {None, ""})
        return f"{self.help} (default: {default})" if default and not self.flag else self.help

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        name, text = f"--{self.name}", self.full_help.replace("%", "%%")
        if self.flag:
            parser.add_argument(name, action="store_true", help=text)
            return
        arity: dict[str, Any] = {"nargs": "+"} if self.many else {}
        if self.optional is not None:
            arity = {"nargs": "?", "const": self.optional}
        parser.add_argument(
            name,
            type=self.type,
            default=list(self.default) if isinstance(self.default, tuple) else self.default,
            choices=self.choices or None,
            metavar=self.metavar or (None if self.choices else METAVARS.get(self.type)),
            required=self.required,
            help=text,
            **arity,
        )


def natural(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def positive(text: str) -> int:
    return natural(text, least=1)


def positive_float(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def fraction(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


METAVARS: Mapping[Callable[[str], Any], str] = {
    natural: "N",
    positive: "N",
    positive_float: "S",
    fraction: "SHARE",
    Path: "FILE",
}

_LIMITS = Limits()

_recording = partial(Option, group="records")
_measuring = partial(Option, group="measuring")
_pacing = partial(Option, group="rounds")

RECORDING = (
    _recording("output", "append the records to FILE, as JSON lines", type=Path),
    _recording(
        "resume",
        "measure only the cases that EARLIER, records of an interrupted run, does not hold; without EARLIER, "
        "the output itself",
        type=Path,
        metavar="EARLIER",
        optional=OUTPUT_ITSELF,
    ),
    _recording(
        "host", "name of this machine in the records", default=platform.node(), default_help="its host name"
    ),
)
"""Options of every program that only its caller sets."""

COMMON = (
    _measuring(
        "width",
        "relative width of the speed-up's 95 % interval at which sampling stops",
        type=fraction,
        default=_LIMITS.width,
    ),
    _measuring(
        "max-seconds",
        "seconds of measuring a case after which no further round begins",
        type=positive_float,
        default=_LIMITS.max_s,
    ),
    _measuring(
        "pin",
        "cores keeps everything to one hyper-thread of each physical core",
        choices=("none", "cores"),
        default="none",
    ),
    _measuring("seed", "seed of every random choice", type=natural, default=0),
)
"""Options of every benchmark."""

ROUNDS = (
    _pacing(
        "rounds",
        "rounds measured at least; fewer than 6 cannot name a winner",
        type=positive,
        default=_LIMITS.rounds,
    ),
    _pacing(
        "slice-seconds", "least time of a setting in a round", type=positive_float, default=_LIMITS.slice_s
    ),
    _pacing(
        "warm-up-seconds",
        "when a warm-up that does not end by itself is cut off",
        type=positive_float,
        default=_LIMITS.warm_up_s,
    ),
)
"""Options of benchmarks whose settings run in slices of time."""

THREADS = Option("threads", "threads of the engine", type=positive, default_help="one per physical core")

CACHE = Option(
    "cache", "folder of built models", type=Path, default=Path("~/.cache/dlcloud/models"), metavar="DIR"
)

TINY: Parameters = {"max-seconds": "2", "slice-seconds": "0.05", "warm-up-seconds": "1"}
"""How the tiny form of a benchmark measures."""

BF16_FLAGS, BF16_NAME = tuple(sorted(X86_BF16_FLAGS)), "AVX512_BF16 or AMX"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementsChoice:
    """Another requirements file, used if one of a parameter's values is this one."""

    parameter: str
    value: str  # the value; `*` stands for anything
    requirements: str  # file below `requirements`
    alone: bool = False  # all of the parameter's values must be this one

    def applies(self, values: Sequence[str]) -> bool:
        matches = [fnmatch.fnmatchcase(value, self.value) for value in values]
        return all(matches) and any(matches) if self.alone else any(matches)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareNeed:
    """A need of hardware of a benchmark, or of one of its settings."""

    setting: str = ""  # one of its settings; empty for the whole benchmark
    given: tuple[str, str] | None = None  # counts only where this parameter has this value
    gpu: bool = False  # needs an NVIDIA GPU
    architecture: str = ""  # needs this architecture, as EC2 names it
    flags: tuple[str, ...] = ()  # CPU flags, as in hardware.FLAGS, of which one is enough
    flags_name: str = ""
    memory_gib: float = 0.0  # memory, in the sizes that instance types are sold with
    advice: str = ""  # the effect without it, if it runs all the same; then nothing is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark program."""

    name: str  # as written in a recipe
    module: str  # the module that `python3 -m` runs
    requirements: str  # file below `requirements` with the pinned packages of its environment
    summary: str  # one sentence for the user
    # Its own options; those of every benchmark are COMMON and, if `rounds` is set, ROUNDS.
    options: tuple[Option, ...]
    # Its own defaults for options of every benchmark, by name.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rounds: bool = True  # settings run in slices of time
    needs: tuple[HardwareNeed, ...] = ()  # needs of hardware; `dlcloud bench` leaves out what does not fit
    # The parameters that `dlcloud bench` runs it with; None if it cannot run it by itself.
    sweep: Parameters | None = None
    only_if_named: bool = False  # `dlcloud bench` runs it only with -b
    # Parameters of its tiny form: the real engines, in seconds.
    tiny: Parameters = field(default_factory=dict)
    # Seconds on two cores, for the estimate of a rehearsal: of a case besides `max-seconds` (models, warm-up,
    # searches), and of the whole tiny form. Source: a rehearsal of c5.18xlarge, November 2026.
    case_s: float = 55.0
    tiny_s: float = 30.0
    # Values of parameters that need other packages; the first that applies counts.
    choices: tuple[RequirementsChoice, ...] = ()

    @property
    def parameters(self) -> dict[str, Option]:
        measuring = (*COMMON, *(ROUNDS if self.rounds else ()))
        options = {option.name: option for option in (*self.options, *measuring)}
        changed = {name: replace(options[name], default=value) for name, value in self.defaults.items()}
        return options | changed

    def needs_for(self, parameters: Parameters) -> tuple[HardwareNeed, ...]:
        """Return the needs that count with these values of parameters."""
        return tuple(need for need in self.needs if _is_given(need.given, parameters))

    @property
    def selecting(self) -> tuple[str, ...]:
        return tuple(option.name for option in self.options if option.selects)

    @property
    def requirements_path(self) -> Path:
        return REQUIREMENTS / self.requirements

    def requirements_for(self, arguments: Sequence[str]) -> Path:
        """Return the path of the requirements file that suits its command-line arguments."""
        # Shortened options and `--option=value` must mean here what they mean to the program.
        parser = argparse.ArgumentParser(add_help=False)
        for name in self.parameters:
            parser.add_argument(f"--{name}", dest=name, nargs="*", default=[])
        values, _ = parser.parse_known_args(arguments)
        choices = (choice for choice in self.choices if choice.applies(getattr(values, choice.parameter)))
        return next((REQUIREMENTS / choice.requirements for choice in choices), self.requirements_path)

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python3 -m {self.module}", description=self.summary)
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        for option in (*self.parameters.values(), *RECORDING):
            if option.group not in groups:
                groups[option.group] = parser.add_argument_group(option.group)
            option.add_to(groups[option.group])
        return parser


def _is_given(condition: tuple[str, str] | None, parameters: Parameters) -> bool:
    if condition is None:
        return True
    values = parameters.get(condition[0], ())
    return condition[1] in ([values] if isinstance(values, str) else values)
