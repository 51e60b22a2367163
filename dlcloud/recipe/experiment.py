"""`experiment`: one command with many values, as trials that share the recipe's instances."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from dlcloud.model.events import describe_values
from dlcloud.recipe.values import Form, Part
from dlcloud.recipe.workload import Workload

MOST_TRIALS = 10_000
VALUES_FILE = "values.json"
"""In the folder in which a trial's command runs."""

ParameterName = Annotated[
    str,
    Form(
        r"[A-Za-z+~][A-Za-z0-9_.+@/-]{0,79}",
        "letters, digits and _ - . / + @, a letter or + first, 80 at most",
    ),
]
"""`lr`, `optimizer.lr`, or as Hydra writes them: `+trainer.epochs`, `model/encoder`."""
ParameterValue = Annotated[str, StringConstraints(max_length=1000)]
Values = dict[ParameterName, ParameterValue]
ValuesList = list[Values]
Axis = Annotated[list[ParameterValue], Field(min_length=1)]


FLAGS: Literal["--NAME VALUE"] = "--NAME VALUE"


def _arguments(value: object) -> object:
    """Return the form of arguments that yes and no are short for."""
    words = {
        **dict.fromkeys(("yes", "true", "on", "1"), FLAGS),
        **dict.fromkeys(("no", "false", "off", "0"), ""),
    }
    return words.get(value.lower(), value) if isinstance(value, str) else value


_Form = Literal["--NAME VALUE", "--NAME=VALUE", "NAME=VALUE"]
Arguments = Annotated[_Form | Literal[""], BeforeValidator(_arguments, json_schema_input_type=bool | _Form)]


class Range(Part):
    """The values of one parameter of a search: a range of numbers, or choices."""

    low: float | None = Field(default=None, description="The least number.")
    high: float | None = Field(default=None, description="The largest number.")
    log: bool = Field(default=False, description="Search its logarithm.")
    integer: bool = Field(default=False, description="Whole numbers only.")
    choices: Axis | None = Field(default=None, description="The values, where they are no range.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.integer:
                raise ValueError("choices and a range exclude each other")
            return self
        if self.low is None or self.high is None:
            raise ValueError("name low and high, or choices")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError("low must be below high")
        if self.log and self.low <= 0:
            raise ValueError("log needs a low above 0")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("integer needs whole numbers as low and high")
        return self


class Search(Part):
    """Values that Optuna chooses, each trial from the metrics of those before it."""

    space: dict[ParameterName, Range] = Field(min_length=1, description="The parameters.")
    trials: int = Field(ge=1, le=MOST_TRIALS, description="Number of trials.")
    sampler: Literal["tpe", "random", "cmaes"] = Field(default="tpe", description="Optuna's sampler.")
    seed: int = Field(default=0, ge=0, description="The sampler's seed.")
    pruner: Literal["none", "median", "halving", "hyperband"] = Field(
        default="none",
        description="Optuna's pruner: ends runs that lag by what dlcloud_report.intermediate says.",
    )

    @model_validator(mode="after")
    def _cmaes_takes_numbers(self) -> Self:
        if self.sampler == "cmaes" and any(one.choices is not None for one in self.space.values()):
            raise ValueError("cmaes searches ranges; tpe and random take choices, too")
        return self


class Experiment(Part):
    """Many trials of the recipe's command: a matrix, a list, or a search of its parameters' values."""

    matrix: dict[ParameterName, Axis] | None = Field(
        default=None, description="Parameters with their values; each combination is a trial."
    )
    include: ValuesList = Field(
        default_factory=list,
        description="Values that are added to the combinations they fit, or their own trials.",
    )
    exclude: ValuesList = Field(
        default_factory=list, description="Combinations of the matrix that are left out; some values suffice."
    )
    list: ValuesList | None = Field(default=None, description="The values of each trial.")
    search: Search | None = Field(
        default=None, description="Values chosen by Optuna (needs the extra `search`)."
    )
    metric: str = Field(
        default="throughput",
        description="Value that is compared: throughput, time, or one of workload.facts.",
    )
    goal: Literal["maximize", "minimize"] = Field(
        default="maximize", description="Direction in which a metric is better."
    )
    repeats: int = Field(default=1, ge=1, le=1000, description="Runs of the command in each trial.")
    per_instance: int = Field(
        default=1, ge=1, le=256, description="Parallel trials on an instance, which share its cores and GPUs."
    )
    attempts: int = Field(default=2, ge=1, le=100, description="Failures after which a trial is given up.")
    arguments: Arguments = Field(
        default=FLAGS,
        description="Form in which values are appended to the command; no: not at all. Variables and a "
        "file have them, too.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in ("matrix", "list", "search") if getattr(self, name)]
        if len(sources) != 1:
            raise ValueError("name one of matrix, list and search")
        if self.matrix is None and (self.include or self.exclude):
            raise ValueError("include and exclude belong to a matrix")
        unknown = sorted({name for values in self.exclude for name in values} - set(self.matrix or ()))
        if unknown:
            raise ValueError(f"exclude: {unknown[0]} is not in the matrix")
        if self.count > MOST_TRIALS:
            raise ValueError(f"{self.count} trials; at most {MOST_TRIALS} are run")
        if not self.count:
            raise ValueError("exclude leaves no trial")
        self._distinct_variables()
        counts = Counter(tuple(sorted(values.items())) for values in self.trials())
        for values, times in counts.most_common(1):
            if times > 1:
                raise ValueError(f"{times} trials have the same values: {describe_values(dict(values))}")
        return self

    def _distinct_variables(self) -> None:
        """Refuse parameters that would share a variable: `a.b` and `a_b`."""
        names = {name for values in self.trials() for name in values}
        first: dict[str, str] = {}
        for name in sorted(names | set(self.search.space if self.search is not None else ())):
            if (other := first.setdefault(_variable(name), name)) != name:
                raise ValueError(f"{other} and {name} would both be the variable {_variable(name)}")

    @property
    def count(self) -> int:
        """The number of trials."""
        return self.search.trials if self.search is not None else len(self.trials())

    def trials(self) -> ValuesList:
        """Return the values of each trial, in their order; none for a search, which chooses them."""
        if self.list is not None:
            return self.list
        if self.matrix is None:
            return []
        size = math.prod(len(axis) for axis in self.matrix.values())
        if size > MOST_TRIALS:
            raise ValueError(f"{size} combinations; at most {MOST_TRIALS} trials are run")
        combinations = [
            dict(zip(self.matrix, values, strict=True)) for values in itertools.product(*self.matrix.values())
        ]
        left = [values for values in combinations if not any(_fits(values, some) for some in self.exclude)]
        return _include(left, self.include, set(self.matrix))


def trial_words(values: Mapping[str, str], form: str) -> list[str]:
    """Return the values of a trial as a command gets them: `--lr 0.1`; none if the form is empty.

    After a blank, argparse takes a value that begins with a dash for an option, except a plain number.
    """
    if form != FLAGS:
        return [
            form.replace("NAME", name, 1).replace("VALUE", value, 1) for name, value in values.items() if form
        ]
    pairs = (
        (f"--{name}={value}",) if _is_like_an_option(value) else (f"--{name}", value)
        for name, value in values.items()
    )
    return [word for pair in pairs for word in pair]


def _is_like_an_option(value: str) -> bool:
    return value.startswith("-") and re.fullmatch(r"-(\d+(\.\d*)?|\.\d+)", value) is None


def trial_variables(values: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the variables of a trial: its values, its number, and the name of the file with all values."""
    own = {_variable(name): value for name, value in values.items()}
    return {**own, "DLCLOUD_VALUES": VALUES_FILE, "DLCLOUD_TRIAL": str(number)}


def _variable(name: str) -> str:
    """Return the name of a parameter's variable."""
    return f"DLCLOUD_VALUE_{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_')}"


def refuse_unfit(experiment: Experiment, workload: Workload) -> None:
    """Refuse a workload that has no trials, and a metric that it does not measure.

    Raises:
        ValueError: Either.
    """
    if workload.command is None or workload.elastic is not None or workload.nodes == "all":
        raise ValueError("experiment belongs to a command that runs on each instance by itself")
    if workload.settings:
        raise ValueError("experiment and workload.settings exclude each other: list the settings as values")
    has_throughput = bool(workload.throughput or workload.json_field or workload.reported)
    metrics = [*(["throughput"] if has_throughput else ["time"]), *workload.facts]
    if experiment.metric not in metrics:
        raise ValueError(f"experiment.metric: {experiment.metric} is not measured; {' or '.join(metrics)} is")


def _fits(values: Mapping[str, str], some: Mapping[str, str]) -> bool:
    return all(values.get(name) == value for name, value in some.items())


def _include(combinations: Sequence[Values], included: Sequence[Values], axes: set[str]) -> ValuesList:
    """Add values as GitHub Actions does: to every combination whose own values stay, else as a trial."""
    trials = [dict(values) for values in combinations]
    alone = []
    for values in included:
        own = {name: value for name, value in values.items() if name in axes}
        pairs = zip(trials, combinations, strict=True)
        fitting = [trial for trial, combination in pairs if _fits(combination, own)]
        for trial in fitting:
            trial.update(values)
        if not fitting:
            alone.append(dict(values))
    return trials + alone
