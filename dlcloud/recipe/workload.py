"""`setup` and `workload`: what an instance needs, what it runs, with which variables and secrets."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from dlcloud.benchmarks.harness.numbers import repeats_in_repeats
from dlcloud.model.secret_source import SecretSource, SourceKind
from dlcloud.recipe.document import UNQUOTED
from dlcloud.recipe.kept_results import refuse_hopeless
from dlcloud.recipe.requirements import checked_lines
from dlcloud.recipe.values import (
    ENVIRONMENT_KEYS,
    Environment,
    Form,
    Lines,
    Part,
    Script,
    Texts,
    VariableName,
)
from dlcloud.trainer.drain import LEAVE_S
from dlcloud.trainer.settings import CHECKPOINT_S

RESERVED = "DLCLOUD_"
"""Names that begin so are dlcloud's own."""

FORMS = "env:NAME, file:PATH, ssm:/PATH or secretsmanager:NAME#KEY"


def read_source(text: str) -> SecretSource:
    """Return the source that a text names.

    Raises:
        ValueError: It is none. The text is not repeated: it may be the secret itself.
    """
    prefix, colon, location = text.partition(":")
    kinds = {kind.value: kind for kind in SourceKind}
    if not colon or not location or prefix not in kinds:
        raise ValueError(f"this is no source of a secret; write {FORMS}, never the value itself")
    kind, key = kinds[prefix], ""
    if kind is SourceKind.SECRETS_MANAGER:
        location, _, key = location.partition("#")
    if kind is SourceKind.ENVIRONMENT and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", location):
        raise ValueError("env: is followed by the name of a variable of yours")
    return SecretSource(kind=kind, location=location, key=key)


def _named_sources(value: object) -> object:
    """Return a name, or a list of names, as a mapping to variables of the same names."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        return value
    return {name: f"{SourceKind.ENVIRONMENT.value}:{name}" for name in names if isinstance(name, str)}


def _check_source(text: str) -> str:
    try:
        return str(read_source(text))
    except ValueError as error:
        raise PydanticCustomError(UNQUOTED, "{fault}", {"fault": str(error)}) from None


_Sources = dict[VariableName, Annotated[str, AfterValidator(_check_source)]]
Secrets = Annotated[
    _Sources,
    BeforeValidator(_named_sources, json_schema_input_type=_Sources | list[VariableName] | VariableName),
]


ContainerImage = Annotated[
    str, Form(r"([a-z0-9][A-Za-z0-9._:/@-]*)?", "the name of a container image, as python:3.12")
]


class Setup(Part):
    """Preparation of an instance before the workload: commands, then packages in an environment."""

    commands: Script = Field(
        default="", description="Shell commands, a text or a list, run once per instance, before anything."
    )
    requirements: Annotated[Lines, AfterValidator(checked_lines)] = Field(
        default_factory=list,
        description="Python packages of the command: a list, or the name of a requirements.txt, "
        "pyproject.toml or environment.yml. uv pins open versions once, before the launch.",
    )

    image: ContainerImage = Field(
        default="",
        description="Container image in which the workload runs, by the instance's podman or docker.",
    )

    @model_validator(mode="after")
    def _packages_of_image(self) -> Self:
        if self.image and self.requirements:
            raise ValueError("image and requirements exclude each other: the image has the packages")
        return self


FactName = Annotated[
    str, Form(r"[a-z][a-z0-9_]{0,30}", "lower-case letters, digits and _, a letter first, 31 at most")
]


class Setting(Part):
    """One way to run the user's command; the first of a list is the baseline."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=40)] = Field(
        description="Name in tables and in `--setting`."
    )
    environment: Environment = Field(
        default_factory=dict,
        validation_alias=ENVIRONMENT_KEYS,
        description="Variables in this setting alone; `env` for short.",
    )
    arguments: list[str] = Field(default_factory=list, description="Appended to the command.")


class Elastic(Part):
    """A command that trains with the workers of all instances, which join and leave at any step."""

    workers_per_instance: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Workers on each instance. Default: one per GPU; one on an instance without GPUs.",
    )

    checkpoint_seconds: float = Field(
        default=CHECKPOINT_S, gt=0, le=86400, description="Seconds between checkpoints."
    )
    leave_seconds: float = Field(
        default=LEAVE_S,
        gt=0,
        le=110,
        description="Seconds before the end of its instance at which a worker leaves; it trains until then.",
    )
    exact_hash_every: int = Field(
        default=0, ge=0, description="Steps between digests of the whole state in the records; 0: none."
    )


def _check_checkpoints(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        refuse_hopeless(pattern.rstrip("/") or pattern)
    return patterns


def _one_place(value: object) -> object:
    if isinstance(value, list):
        raise ValueError(  # noqa: TRY004  pydantic's
            "is one file or folder: name the folder that has them; .dlcloudignore leaves others out"
        )
    return value


Sent = Annotated[str, BeforeValidator(_one_place, json_schema_input_type=str)]

MEASURED_REPEATS = 6
"""The fewest measurements by which a winner is named."""


class Workload(Part):
    """A bundled benchmark with its parameters, or the user's own command."""

    benchmark: str | None = Field(default=None, description="The name of a bundled benchmark.")
    parameters: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="The benchmark's options, without dashes; a list has several values.",
    )
    command: str | None = Field(default=None, description="A shell command.")
    files: Sent | None = Field(
        default=None,
        description="File or folder, relative to the recipe, that is copied to the working folder.",
    )
    throughput: str | None = Field(
        default=None,
        description="Regular expression of one group, which is the throughput in a line.",
    )
    json_field: str | None = Field(
        default=None,
        description="Field of JSON lines that holds the throughput; a.b for nested ones.",
    )
    reported: bool = Field(
        default=False,
        description="The command reports its throughput by `dlcloud_report.step(images)`.",
    )
    final: bool = Field(default=False, description="Take only the last throughput of each run.")
    facts: dict[FactName, str] = Field(
        default_factory=dict,
        description="Other values in the output: names, each with a regular expression of one group. The "
        "last match of a run counts.",
    )
    unit: str = Field(
        default="items", description="Items that the throughput counts: images, samples, tokens, …"
    )
    repeats: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Runs of each setting, after a warm-up run. 1 runs the command once, without a warm-"
        "up. Default: 6 with several settings or under `bench`.",
    )
    retries: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Number of further runs of a command that fails by itself. If its instance is "
        "reclaimed or lost, it always runs again, on a replacement.",
    )
    checkpoints: Annotated[Texts, AfterValidator(_check_checkpoints)] = Field(
        default_factory=list,
        description="Folders or patterns below the working folder that are copied while the command runs,"
        " and restored when it starts again. Copies are in S3 with `checkpoints: s3://…`, "
        "otherwise in the dlcloud home, by the folder of the recipe.",
    )
    resume: Literal["none", "auto"] = Field(
        default="none",
        description="auto: a framework that dlcloud knows saves at a notice, and resumes from `checkpoints`.",
    )
    on_notice: str = Field(
        default="",
        description="Shell command that asks the program to stop at a notice, such as `kill -USR1 "
        "$DLCLOUD_PID`. Default: SIGTERM to its process group.",
    )
    on_rebalance: bool = Field(
        default=False, description="Take a rebalance recommendation for an interruption notice."
    )
    settings: list[Setting] = Field(
        default_factory=list,
        description="Variants of the command that are compared in turns; the first is the baseline.",
    )
    tiny: list[str] = Field(
        default_factory=list,
        description="Arguments appended to the command in its tiny form, which `up --cloud local` and "
        "`bench --tiny` run once.",
    )
    environment: Environment = Field(
        default_factory=dict,
        validation_alias=ENVIRONMENT_KEYS,
        description="Variables of the program, in every setting; `env` for short.",
    )
    secrets: Secrets = Field(
        default_factory=dict,
        description="Variables with values that are never stored: names, or names with sources: env:NAME,"
        " file:PATH, ssm:/PATH, secretsmanager:NAME#KEY.",
    )
    nodes: Literal["all", "each"] | None = Field(
        default=None,
        description="all: one job over all instances; each: the command runs on every instance by itself."
        " Default: each, or all for torchrun.",
    )
    elastic: Elastic | None = Field(
        default=None,
        description="The command is one training job over all instances; `{}` takes every default.",
    )

    @model_validator(mode="before")
    @classmethod
    def _repeat_settings(cls, written: Any) -> Any:  # noqa: ANN401  whatever is written there
        """Measure settings often enough to name a winner, unless the recipe says how often."""
        if isinstance(written, dict) and written.get("repeats") is None:
            settings = written.get("settings")
            if isinstance(settings, list) and len(settings) > 1:
                return {**written, "repeats": MEASURED_REPEATS}
        return written

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.benchmark is None) == (self.command is None):
            raise ValueError("name either a benchmark or a command")
        if self.benchmark is None and self.parameters:
            raise ValueError("parameters belong to a benchmark; a command has settings")
        if self.command is None:
            keys = ("throughput", "json_field", "reported", "final", "facts", "settings", "tiny", "elastic")
            own = [key for key in keys if getattr(self, key)]
            if own:
                raise ValueError(f"{own[0]} belongs to a command, not to a bundled benchmark")
        self._one_reading()
        ways = ("throughput", "json_field", "reported", "facts", "settings")
        measured = [key for key in ways if getattr(self, key)]
        if self.elastic and measured:
            raise ValueError(f"{measured[0]} is for a command that is measured, elastic for one that trains")
        self._checkpoints_fit()
        if self.nodes and (self.command is None or self.elastic):
            raise ValueError(f"nodes: {self.nodes} belongs to a command that is not elastic")
        names = [setting.name for setting in self.settings]
        if len(set(names)) != len(names):
            raise ValueError("two settings have the same name")
        return self

    @model_validator(mode="after")
    def _distinct_variables(self) -> Self:
        """Refuse names of dlcloud's own, and a secret that would not be the program's."""
        for name in (*self.environment, *self.secrets):
            if name.startswith(RESERVED):
                raise ValueError(f"{name}: names that begin with {RESERVED} are dlcloud's own")
        for holder in (self.environment, *(setting.environment for setting in self.settings)):
            twice = sorted(holder.keys() & self.secrets.keys())
            if twice:
                raise ValueError(f"{twice[0]} is named in both environment and secrets")
        return self

    def _checkpoints_fit(self) -> None:
        """Refuse checkpoints of what is no single run of a command, and keys that need checkpoints."""
        if self.checkpoints and (self.command is None or self.elastic):
            raise ValueError("checkpoints belongs to a command that is not elastic, which keeps its own")
        if self.checkpoints and (self.repeats > 1 or len(self.settings) > 1):
            raise ValueError("checkpoints belongs to a command that runs once: no settings, no repeats")
        keys = [key for key in ("on_notice", "on_rebalance") if getattr(self, key)]
        keys += ["resume"] if self.resume != "none" else []
        if keys and not self.checkpoints:
            raise ValueError(f"{keys[0]} needs checkpoints: the folder that the command saves to")

    def _one_reading(self) -> None:
        """Refuse two ways of reading the throughput, and a last value of none."""
        readings = [key for key in ("throughput", "json_field", "reported") if getattr(self, key)]
        if len(readings) > 1:
            raise ValueError(f"{' and '.join(readings)} exclude each other")
        if self.final and not readings:
            raise ValueError("final needs throughput, json_field or reported")
        if self.throughput is not None:
            _one_group(self.throughput, "throughput", "the number")
        for name, pattern in self.facts.items():
            _one_group(pattern, f"facts.{name}", "the value")


def _one_group(pattern: str, key: str, group: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key} is not a regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"{key} must have one group, {group}; it has {groups}")
    if repeats_in_repeats(pattern):
        raise ValueError(
            f"{key} may take forever on a long line: {pattern!r} repeats a repeat, as (a+b?)+ does; "
            "repeat what ends with its own character, as (a+b)+"
        )
