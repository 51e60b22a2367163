"""A recipe: the workload, its instances and its budget, as users write them in YAML."""

import hashlib
import json
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dlcloud.core.cluster import DEFAULT_REGION
from dlcloud.core.deadline import Deadline, refuse_no_choice
from dlcloud.core.document import read_model
from dlcloud.core.errors import RecipeError
from dlcloud.core.incident import Incident
from dlcloud.core.instance import Market
from dlcloud.trainer.drain import LEAVE_S
from dlcloud.trainer.settings import CHECKPOINT_S

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
TypeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")]


def _listed(value: object) -> object:
    """Return a single value as a list of it."""
    return [value] if isinstance(value, str) else value


_SomeTypes = Annotated[list[TypeName], Field(min_length=1)]
TypeNames = Annotated[_SomeTypes, BeforeValidator(_listed, json_schema_input_type=_SomeTypes | TypeName)]
Texts = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=list[str] | str)]
Environment = dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Count(_Part):
    """A range of instances: the run goes on with any number from `min` to `max`."""

    min: int = Field(ge=1, le=1000, description="Fewer than this is a failure.")
    max: int = Field(ge=1, le=1000, description="As many as are asked for.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self


def _count_form(value: object) -> str:
    return "range" if isinstance(value, dict | Count) else "number"


AnyCount = Annotated[
    Annotated[int, Field(ge=1, le=1000), Tag("number")] | Annotated[Count, Tag("range")],
    Discriminator(_count_form),
]


class Instances(_Part):
    """Which instances, and how they are paid for."""

    types: TypeNames = Field(description="Instance types, tried in this order.")
    count: AnyCount = Field(default=1, description="A number, or {min: 1, max: 4}.")
    market: Literal["on-demand", "spot", "spot-then-on-demand"] = Field(
        default="on-demand", description="spot-then-on-demand falls back where no spot capacity is left."
    )
    on_demand_base: int = Field(
        default=0,
        ge=0,
        description="This many of the instances are on-demand, the others spot.",
    )
    zones: Texts = Field(default_factory=list, description="Availability Zones to try; all if empty.")
    spread_zones: bool = Field(
        default=False,
        description="Spread an elastic training's instances over the zones; by default they share one as far "
        "as it has capacity, since traffic between zones is billed.",
    )
    image: str = Field(
        default="auto",
        pattern=r"^(auto|ami-[0-9a-f]+|dlcloud-[a-z0-9-]+|/[A-Za-z0-9_./-]+)$",
        description="auto (Ubuntu 24.04, or AWS's Deep Learning AMI where there is an NVIDIA GPU, for the "
        "architecture of the types), ami-…, dlcloud-… (what `dlcloud image` made), or the path of an SSM "
        "parameter that holds one.",
    )
    user: str = Field(
        default="ubuntu", pattern=r"^[a-z_][a-z0-9_-]*$", description="The login user of the image."
    )
    disk_gib: int = Field(
        default=50,
        ge=8,
        le=16384,
        description="Least size of the encrypted gp3 root volume; a larger image takes more.",
    )

    @model_validator(mode="after")
    def _base_under_spot(self) -> Self:
        if self.on_demand_base and self.market == "on-demand":
            raise ValueError("on_demand_base belongs to market: spot or spot-then-on-demand")
        if self.on_demand_base > self.maximum:
            raise ValueError(f"on_demand_base ({self.on_demand_base}) is more than count ({self.maximum})")
        return self

    @property
    def minimum(self) -> int:
        return self.count if isinstance(self.count, int) else self.count.min

    @property
    def maximum(self) -> int:
        return self.count if isinstance(self.count, int) else self.count.max

    @property
    def rounds(self) -> tuple[Market, ...]:
        """The markets in the order in which they are asked."""
        if self.market == "spot-then-on-demand":
            return (Market.SPOT, Market.ON_DEMAND)
        return (Market(self.market),)

    @property
    def markets(self) -> tuple[Market, ...]:
        """Every market that instances may come from: those of the rounds, and that of the base."""
        if self.on_demand_base and Market.ON_DEMAND not in self.rounds:
            return (Market.ON_DEMAND, *self.rounds)
        return self.rounds


def _lines(value: object) -> object:
    """Return the lines of a text, without comments; a list as it is."""
    if not isinstance(value, str):
        return value
    return [line for text in value.splitlines() if (line := text.partition("#")[0].strip())]


Lines = Annotated[list[str], BeforeValidator(_lines, json_schema_input_type=str | list[str])]


class Setup(_Part):
    """What an instance needs before the workload: commands, then pinned packages of its own environment."""

    commands: str = Field(default="", description="Shell commands, run once per instance, before anything.")
    requirements: Lines = Field(
        default_factory=list,
        description="Pinned Python packages (name==version) for the user's command; a list, or one a line.",
    )

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        for requirement in self.requirements:
            if not re.match(r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[^\s]+$", requirement):
                raise ValueError(f"{requirement!r} is not pinned; write name==version")
        return self


class Setting(_Part):
    """One way to run the user's command; the first of a list is the baseline."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=40)]
    environment: Environment = Field(default_factory=dict)
    arguments: list[str] = Field(default_factory=list, description="Appended to the command.")


class Elastic(_Part):
    """A command that trains with one worker per instance; workers join and leave at any step."""

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


class Workload(_Part):
    """A bundled benchmark with its parameters, or the user's own command."""

    benchmark: str | None = Field(default=None, description="The name of a bundled benchmark.")
    parameters: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="The benchmark's options, without dashes; a list has several values.",
    )
    command: str | None = Field(default=None, description="A shell command.")
    files: str | None = Field(
        default=None,
        description="A file or folder, relative to the recipe, copied to where it runs: a command's program, "
        "or a model that a benchmark is given.",
    )
    throughput: str | None = Field(
        default=None,
        description="A regular expression whose one group is the throughput in a line.",
    )
    json_field: str | None = Field(
        default=None,
        description="The field that holds the throughput in lines that are JSON objects; a.b for nested.",
    )
    reported: bool = Field(
        default=False,
        description="The command reports its throughput: import dlcloud_report; dlcloud_report.step(images).",
    )
    final: bool = Field(default=False, description="Take only the last throughput of each run.")
    unit: str = Field(default="items", description="What the throughput counts: images, samples, tokens, …")
    repeats: int = Field(default=6, ge=1, le=1000, description="How often each runs; 6 to name a winner.")
    settings: list[Setting] = Field(default_factory=list)
    elastic: Elastic | None = Field(
        default=None,
        description="The command is one training job over all instances; `{}` takes every default.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.benchmark is None) == (self.command is None):
            raise ValueError("name either a benchmark or a command")
        if self.benchmark is None and self.parameters:
            raise ValueError("parameters belong to a benchmark; a command has settings")
        if self.command is None:
            keys = ("throughput", "json_field", "reported", "final", "settings", "elastic")
            own = [key for key in keys if getattr(self, key)]
            if own:
                raise ValueError(f"{own[0]} belongs to a command, not to a bundled benchmark")
        self._one_reading()
        measured = [key for key in ("throughput", "json_field", "reported", "settings") if getattr(self, key)]
        if self.elastic and measured:
            raise ValueError(f"{measured[0]} is for a command that is measured, elastic for one that trains")
        names = [setting.name for setting in self.settings]
        if len(set(names)) != len(names):
            raise ValueError("two settings have the same name")
        return self

    def _one_reading(self) -> None:
        """Refuse two ways of reading the throughput, and a last value of none."""
        readings = [key for key in ("throughput", "json_field", "reported") if getattr(self, key)]
        if len(readings) > 1:
            raise ValueError(f"{' and '.join(readings)} exclude each other")
        if self.final and not readings:
            raise ValueError("final needs throughput, json_field or reported")
        if self.throughput is not None:
            _one_group(self.throughput)


class Budget(_Part):
    """The most that may be spent. The instances themselves hold `max_hours`, with the launcher gone."""

    max_usd: Annotated[Decimal, AfterValidator(Decimal.normalize)] | None = Field(
        default=None, gt=0, le=1_000_000, description="Refuse a plan that could cost more."
    )
    max_hours: float = Field(
        default=4.0,
        gt=0,
        le=24 * 30,
        description="Each instance ends itself after so many hours; on AWS at least 0.25.",
    )
    idle_minutes: int | None = Field(
        default=None,
        ge=6,
        description="Each instance ends itself after so many minutes in which no run, no command of dlcloud "
        "and no busy program was there; on AWS at least 15.",
    )


class Keep(_Part):
    """What outlives the run."""

    instances: bool = Field(default=False, description="Keep the cluster up (dlcloud down ends it).")
    files: Texts = Field(
        default_factory=list, description="Patterns of files, below the working folder, to bring home."
    )


class Recipe(_Part):
    """A whole recipe."""

    name: Name
    cloud: Literal["aws", "local"] = Field(
        default="aws", description="local rehearses on this machine: no account, no bill, same code."
    )
    region: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")] = DEFAULT_REGION
    instances: Instances
    setup: Setup = Setup()
    workload: Workload
    budget: Budget = Budget()
    keep: Keep = Keep()
    rehearsal: list[Incident] = Field(
        default_factory=list,
        description="Events of an elastic run on the local cloud: interruptions, losses, new capacity.",
    )
    deadline: Deadline | None = Field(
        default=None,
        description="When an elastic training ends; its size and markets are chosen for the least money.",
    )

    @field_validator("deadline", mode="after")
    @classmethod
    def _has_a_choice(cls, deadline: Deadline | None, info: ValidationInfo) -> Deadline | None:
        workload, instances = info.data.get("workload"), info.data.get("instances")
        if deadline is not None and workload is not None and instances is not None:
            fixed = instances.count if isinstance(instances.count, int) else None
            is_elastic = workload.elastic is not None
            refuse_no_choice(is_elastic=is_elastic, market=instances.market, fixed_count=fixed)
        return deadline

    @model_validator(mode="after")
    def _zones_in_region(self) -> Self:
        for zone in self.instances.zones:
            if not zone.startswith(self.region):
                raise ValueError(f"zone {zone} is not in region {self.region}")
        return self

    @model_validator(mode="after")
    def _elastic_has_an_anchor(self) -> Self:
        if self.rehearsal and (self.cloud != "local" or self.workload.elastic is None):
            raise ValueError("rehearsal belongs to cloud: local and an elastic workload")
        fixed = self.instances.market == "on-demand" or self.instances.on_demand_base
        if self.instances.spread_zones and self.workload.elastic is None:
            raise ValueError("spread_zones belongs to an elastic workload; others always may be spread")
        if self.workload.elastic is not None and not fixed:
            raise ValueError("an elastic workload needs on_demand_base: 1, for the instance that coordinates")
        return self

    def resized(self, count: int) -> Self:
        """Return the recipe for another number of instances."""
        instances = {
            "count": Count(min=min(self.instances.minimum, count), max=count),
            "on_demand_base": min(self.instances.on_demand_base, count),
        }
        return self.model_copy(update={"instances": self.instances.model_copy(update=instances)})

    @property
    def hash(self) -> str:
        """A digest of the values, whatever their spelling."""
        content = self.model_dump(mode="json")
        if self.deadline is None:  # as before the key was there: stored clusters are found by their hash
            del content["deadline"]
        values = json.dumps(content, sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()[:16]


def read_recipe(text: str, file: str) -> Recipe:
    """Return the recipe that a YAML text contains.

    Args:
        text: The YAML text.
        file: Its name in messages.

    Raises:
        RecipeError: All faults at once, one `file:line: path: message` a line, in the order of the lines.
    """
    recipe, faults = read_model(Recipe, text)
    if recipe is None:
        raise RecipeError(
            "\n".join(fault.render(file) for fault in faults),
            "dlcloud schema prints what a recipe may say",
        )
    return recipe


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, for editors."""
    schema = _as_editors_read(Recipe.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "dlcloud recipe"}


def _as_editors_read(schema: Any) -> Any:  # noqa: ANN401  a tree of JSON
    """Let free text look like a number or a truth value, which an editor takes it for: `batch: 1`."""
    if isinstance(schema, list):
        return [_as_editors_read(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: _as_editors_read(inner) for key, inner in schema.items()}
    if read.get("type") == "string" and not read.keys() & {"pattern", "enum", "const"}:
        read["type"] = ["string", "number", "boolean"]
    return read


def _one_group(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"throughput is not a regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"throughput must have one group, the number; it has {groups}")
