"""A recipe: the workload, its instances and its budget, as users write them in YAML."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath, PurePosixPath
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dlcloud.model.cluster import DEFAULT_REGION, Cluster
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.data import DataItem, S3Uri
from dlcloud.recipe.deadline import Deadline, read_duration, refuse_no_choice
from dlcloud.recipe.document import parse, read_model
from dlcloud.recipe.experiment import Experiment, refuse_unfit
from dlcloud.recipe.instances import Count, Instances, Requirements
from dlcloud.recipe.kept_results import DEFAULT_BYTES, GIB, KeptFiles, refuse_hopeless
from dlcloud.recipe.launchers import Launcher, find_launcher
from dlcloud.recipe.network import Network
from dlcloud.recipe.values import BOUNDARY, LONGEST_NAME, TAGS, Form, Name, Part, PolicyArn, Tags, Texts
from dlcloud.recipe.workload import MEASURED_REPEATS, Setup, Workload

ServerUrl = Annotated[
    str, Form(r"https?://[^\s/@]+(/[^\s@]*)?", "an address that begins with http:// or https://")
]


class Track(Part):
    """Servers that runs are recorded on."""

    mlflow: ServerUrl = Field(description="An MLflow server; its credentials are in MLflow's own variables.")
    experiment: str = Field(
        default="", max_length=200, description="The experiment on the server; by default the recipe's name."
    )


class Incident(Part):
    """One event of a rehearsal: an interruption, the loss of an instance, or a change of capacity."""

    after: float = Field(ge=0, le=86400, description="Seconds after the first step.")
    interrupt: int | None = Field(
        default=None,
        ge=0,
        description="Number of the instance, coordinator left out, that receives an interruption notice.",
    )
    grace: float = Field(default=120, gt=0, le=600, description="Seconds from the notice to the termination.")
    kill: Literal["coordinator"] | Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Number of the instance, or coordinator, that is lost without a notice."
    )
    capacity: int | None = Field(
        default=None,
        ge=0,
        description="Most instances of each of the recipe's types that may run at the same time.",
    )

    @model_validator(mode="after")
    def _one_incident(self) -> Self:
        if sum(value is not None for value in (self.interrupt, self.kill, self.capacity)) != 1:
            raise ValueError("name one of interrupt, kill, capacity")
        return self


FIRST_KEYS = {
    "": {"budget", "cloud", "instances", "keep", "name", "region", "rehearsal", "setup", "workload"},
    "budget": {"idle_minutes", "max_hours", "max_usd"},
    "instances": {
        *("count", "disk_gib", "image", "market", "on_demand_base", "spread_zones", "types", "user", "zones"),
    },
    "keep": {"files", "instances"},
    "setup": {"commands", "requirements"},
    "workload": {
        *("benchmark", "command", "elastic", "files", "final", "json_field", "parameters", "repeats"),
        *("reported", "settings", "throughput", "unit"),
    },
    "workload.elastic": {"checkpoint_seconds", "exact_hash_every", "leave_seconds"},
}
"""The keys of the first recipes, by section: their values are always part of the hash.

Every other key counts only if it is set: stored clusters are found by the hash, which no new key may change.
"""


def _hours(value: object) -> object:
    """Return a duration, as 90m, in hours; a number as it is."""
    length = read_duration(value) if isinstance(value, str) else None
    return value if length is None else length.total_seconds() / 3600


_Hours = (
    Annotated[float, Field(gt=0, le=24 * 30)] | Annotated[str, Form(r"[0-9.]+ *[a-z][0-9. a-z]*", "as 90m")]
)
Hours = Annotated[float, BeforeValidator(_hours, json_schema_input_type=_Hours)]


class Budget(Part):
    """The most that may be spent. Instances enforce it themselves."""

    max_usd: Annotated[Decimal, AfterValidator(Decimal.normalize)] | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="The most that the instances may cost. They terminate before `max_hours` if it is "
        "spent earlier. A plan of less than 15 minutes is refused.",
    )
    max_hours: Hours = Field(
        default=4.0,
        gt=0,
        le=24 * 30,
        description="Each instance terminates itself after this many hours; on AWS at least 0.25.",
    )
    idle_minutes: int | None = Field(
        default=None,
        ge=6,
        description="Each instance terminates itself after this many minutes without a run, a dlcloud "
        "command or a busy program; on AWS at least 15.",
    )


LONGEST_KEPT = timedelta(hours=24)


def _check_kept(text: str) -> str:
    length = read_duration(text) if text else timedelta()
    if length is None or (text and not timedelta(minutes=1) <= length <= LONGEST_KEPT):
        raise ValueError("write a duration between 1m and 24h, such as 30m")
    return text.strip()


def _check_patterns(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        refuse_hopeless(pattern)
    return patterns


class Keep(Part):
    """Instances and files that outlive the run."""

    instances: bool = Field(default=False, description="Keep the cluster up (dlcloud down ends it).")
    files: Annotated[Texts, AfterValidator(_check_patterns)] | None = Field(
        default=None,
        description="Patterns of files to download, of those that the run wrote below its working folder,"
        " or `none`. By default all that a command wrote, up to `max_gib`.",
    )
    max_gib: float | None = Field(
        default=None,
        gt=0,
        description="GiB to download of a run without `files`, by default 2. The rest stays on its "
        "instance for an hour.",
    )
    failed: Annotated[str, AfterValidator(_check_kept)] = Field(
        default="",
        description="Time for which the instance of a failed run stays up, such as 30m.",
    )
    all_nodes: bool = Field(
        default=False,
        description="Download files of every node of a job over all instances, not of rank 0 alone.",
    )

    @property
    def failed_s(self) -> float:
        """Seconds for which the instance of a failed run stays up; 0 for not at all."""
        length = read_duration(self.failed) if self.failed else None
        return 0.0 if length is None else length.total_seconds()


RegionName = Annotated[str, Form(r"[a-z]{2}(-[a-z]+)+-\d", "a region, as us-east-1")]
_AnyRegion = Annotated[str, Form(r"any|[a-z]{2}(-[a-z]+)+-\d", "a region, as us-east-1, or any")]


def _same(value: object) -> object:
    return value


class Replicated(Part):
    """Checkpoints with a bucket in each Region."""

    to: Annotated[str, Form(r"s3://[^/]*\{region\}.*", "s3://BUCKET-{region}/PREFIX")] = Field(
        description="s3://BUCKET-{region}/PREFIX: a bucket in each Region, which must be there. {region} "
        "stands for its name. Instances use the bucket of their own Region."
    )
    replicate: bool = Field(
        description="S3 copies each checkpoint ahead to the second-best Region of the plan. A cluster in "
        "another Region reads the newest of all copies in its own Region."
    )


_Checkpoints = Annotated[S3Uri, BeforeValidator(_same, json_schema_input_type=S3Uri | Replicated)]
REPLICATED = "checkpoints: write s3://BUCKET/PREFIX, or {to: s3://BUCKET-{region}/PREFIX, replicate: yes}"


class Recipe(Part):
    """A whole recipe."""

    name: Name = Field(description="Name of the cluster and its results. Default: the name of the file.")
    cloud: Literal["aws", "local"] = Field(
        default="aws", description="local rehearses on this machine: no account, no bill, same code."
    )
    region: Annotated[
        RegionName, BeforeValidator(_same, json_schema_input_type=_AnyRegion | list[RegionName])
    ] = Field(
        default=DEFAULT_REGION,
        description="The AWS Region; or several, or any: the cheapest that has capacity.",
    )
    regions: list[_AnyRegion] = Field(
        default_factory=list,
        description="Written by dlcloud: the regions that `region` was chosen from.",
    )
    geography: Annotated[str, Form(r"[a-z]{2}", "us, eu, ap or so")] | None = Field(
        default=None, description="Beginning of the names of Regions, for `region: any`: us, eu, ap."
    )
    instances: Instances
    setup: Setup = Setup()
    workload: Workload
    experiment: Experiment | None = Field(
        default=None, description="Many trials of the command with values of its parameters."
    )
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
    network: Network | None = Field(default=None, description="An existing VPC, and the way in.")
    tags: Tags = TAGS
    permissions_boundary: PolicyArn = BOUNDARY
    data: list[DataItem] = Field(
        default_factory=list, description="Folders and prefixes of S3 that the workload reads."
    )
    track: Track | None = Field(
        default=None, description="A server of MLflow that runs are recorded on while results arrive."
    )
    checkpoints: _Checkpoints | None = Field(
        default=None,
        description="s3://BUCKET/PREFIX for checkpoints of an elastic training, or of "
        "`workload.checkpoints`. The next `up` continues from the newest one.",
    )
    replicated: str = Field(
        default="", description="Written by dlcloud: `checkpoints.to` of checkpoints that are replicated."
    )
    replica_region: RegionName | None = Field(
        default=None, description="Written by dlcloud: the region that checkpoints are replicated to."
    )
    results: S3Uri | None = Field(
        default=None,
        description="s3://BUCKET/PREFIX for results of each run as it ends (--on batch, --detach).",
    )

    @model_validator(mode="before")
    @classmethod
    def _several_buckets(cls, written: Any) -> Any:  # noqa: ANN401  whatever is written there
        """Take the bucket of the first region, which `_several_regions` has chosen; see `Replicated`."""
        place = written.get("checkpoints") if isinstance(written, dict) else None
        if not isinstance(place, dict):
            return written
        template, region = str(place.get("to")), written.get("region", DEFAULT_REGION)
        if place.keys() != {"to", "replicate"} or place["replicate"] not in (True, "yes", "true"):
            raise ValueError(REPLICATED)
        if "{region}" not in template.removeprefix("s3://").partition("/")[0]:
            raise ValueError(f"checkpoints: replicate needs a bucket in each region: {REPLICATED}")
        return written | {"checkpoints": template.replace("{region}", str(region)), "replicated": template}

    @model_validator(mode="before")
    @classmethod
    def _several_regions(cls, written: Any) -> Any:  # noqa: ANN401  whatever is written there
        """Take a list, `a,b` or `any` as the regions to choose from; the first stands until then."""
        region = written.get("region") if isinstance(written, dict) else None
        names = region.replace(",", " ").split() if isinstance(region, str) else region
        if not isinstance(names, list) or not names or (len(names) == 1 and names != ["any"]):
            return written | {"region": names[0]} if isinstance(region, list) and names else written
        first = [] if names == ["any"] else [("region", names[0])]
        others = {key: value for key, value in written.items() if key != "region"}
        return dict(first) | others | {"regions": names}

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
    def _storage_fits(self) -> Self:
        if self.checkpoints is not None and self.workload.elastic is None and not self.workload.checkpoints:
            raise ValueError("checkpoints needs workload.checkpoints, or an elastic workload")
        if self.workload.checkpoints and self.experiment is not None:
            raise ValueError("workload.checkpoints belongs to a command that runs once, not to an experiment")
        paths = [PurePosixPath(item.to) for item in self.data]
        for path in paths:
            if paths.count(path) > 1 or any(other in path.parents for other in paths):
                raise ValueError(f"data: two items are copied to {path}")
        if self.data and self.workload.benchmark is not None:
            raise ValueError("data belongs to a command; a benchmark reads none")
        return self

    @model_validator(mode="after")
    def _experiment_fits(self) -> Self:
        if self.experiment is not None:
            refuse_unfit(self.experiment, self.workload)
        return self

    @model_validator(mode="after")
    def _free_to_move(self) -> Self:
        if self.geography is not None and self.regions != ["any"]:
            raise ValueError("geography belongs to region: any")
        if len(set(self.regions)) < len(self.regions) or (len(self.regions) > 1 and "any" in self.regions):
            raise ValueError("region: each region once, or any alone")
        if self.replicated and (len(self.regions) < 2 or not self.checkpoints):  # noqa: PLR2004
            raise ValueError("checkpoints: replicate needs regions by name: region: [us-east-1, us-west-2]")
        if self.regions and (bound := self._bound_by()):
            raise ValueError(f"{bound} is of one region: name that in region, or leave it out")
        return self

    def _bound_by(self) -> str:
        """Return the first key whose value exists in one region only; empty if there is none."""
        instances = self.instances
        own_key = instances.kms_key and not instances.kms_key.startswith(("alias/", "mrk-"))
        bound = {
            "network": self.network is not None,
            "instances.zones": instances.zones,
            "instances.image": instances.image.startswith(("ami-", "dlcloud-")),
            "instances.kms_key": own_key,
            "instances.reservations": instances.reservations is not None and instances.reservations.ids,
            "instances.placement_group": instances.own_group,
        }
        return next((key for key, is_bound in bound.items() if is_bound), "")

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
        is_one_job = self.workload.elastic is not None or self.is_one_job
        if self.instances.spread_zones and not is_one_job:
            raise ValueError("spread_zones belongs to one job over instances; others always may be spread")
        if self.deadline is not None and self.instances.uses_reservations:
            raise ValueError(
                "a deadline chooses between spot and on-demand: leave instances.reservations out"
            )
        if self.keep.all_nodes and not self.is_one_job:
            raise ValueError("keep.all_nodes belongs to workload.nodes: all")
        if self.workload.elastic is not None and not fixed:
            raise ValueError("an elastic workload needs on_demand_base: 1, for the instance that coordinates")
        return self

    @property
    def is_one_job(self) -> bool:
        """True if a command is one job over all instances: as the recipe says, or as its launcher shows."""
        workload = self.workload
        if workload.nodes is not None or self.launcher is None:
            return workload.nodes == "all"
        return self.launcher.over_all is True

    @property
    def launcher(self) -> Launcher | None:
        """The launcher, such as torchrun, that a command on several instances starts."""
        workload = self.workload
        if workload.command is None or workload.elastic is not None or self.experiment is not None:
            return None
        return find_launcher(workload.command) if self.instances.maximum > 1 else None

    @property
    def kept_files(self) -> KeptFiles:
        """Which of the files that a run writes are downloaded."""
        files = self.keep.files
        if files is None:
            limit = DEFAULT_BYTES if self.keep.max_gib is None else int(self.keep.max_gib * GIB)
            return KeptFiles(patterns=None if self.workload.command is not None else (), limit=limit)
        return KeptFiles(patterns=() if files == ["none"] else tuple(files))

    def resized(self, count: int) -> Self:
        """Return the recipe for another number of instances."""
        instances = {
            "count": Count(min=min(self.instances.minimum, count), max=count),
            "on_demand_base": min(self.instances.on_demand_base, count),
        }
        return self.model_copy(update={"instances": self.instances.model_copy(update=instances)})

    def keeping_free(self, count: int | None) -> Self:
        """Return the recipe with another number of reserved instances that stay idle; None: its own."""
        reservations = self.instances.reservations
        if reservations is None or count is None:
            return self
        kept = reservations.model_copy(update={"keep_free": count})
        instances = self.instances.model_copy(update={"reservations": kept})
        return self.model_copy(update={"instances": instances})

    @property
    def open_regions(self) -> list[str]:
        """The regions that its cluster may be in; `any` stands for all of the account."""
        return self.regions or [self.region]

    def in_region(self, region: str) -> Self:
        """Return the recipe for a cluster in one of its regions; its hash stays."""
        place = self.checkpoints_in(region) if self.replicated else self.checkpoints
        return self.model_copy(update={"region": region, "checkpoints": place, "replica_region": None})

    def checkpoints_in(self, region: str) -> str:
        """Return where replicated checkpoints are in a region."""
        return self.replicated.replace("{region}", region).rstrip("/")

    @property
    def checkpoint_places(self) -> dict[str, str]:
        """Where checkpoints may be, by region: replicated ones in each, others where `checkpoints` says."""
        if self.replicated:
            return {name: self.checkpoints_in(name) for name in self.regions}
        return {} if self.checkpoints is None else {self.region: self.checkpoints}

    def with_types(self, types: Sequence[str]) -> Self:
        """Return the recipe with the types that were chosen for its requirements; its hash stays."""
        kept = {
            key: field.get_default(call_default_factory=True)
            for key, field in Requirements.model_fields.items()
            if key != "max_usd_per_hour"
        }
        needs = self.instances.describe()
        instances = self.instances.model_copy(update={**kept, "types": list(types), "chosen_for": needs})
        return self.model_copy(update={"instances": instances})

    @property
    def hash(self) -> str:
        """A digest of the values, whatever their spelling."""
        values = json.dumps(self.values(), sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        """Return the recipe as YAML, without what is unset."""
        content = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        if len(self.workload.settings) > 1:  # their default is another
            content["workload"]["repeats"] = self.workload.repeats
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    def values(self) -> dict[str, Any]:
        """Return all values, without later keys that are not set: stored digests are of these."""
        content = self.model_dump(mode="json")
        for section, first_keys in FIRST_KEYS.items():
            part, values = self, content
            for name in section.split(".") if section else ():
                part, values = getattr(part, name), values and values[name]
            for key, field in type(part).model_fields.items() if values else ():
                is_unset = not values[key] or values[key] == field.get_default(call_default_factory=True)
                if key not in first_keys and is_unset:
                    del values[key]
        if self.regions:
            del content["region"]  # wherever its cluster is
            content.pop("replica_region", None)
            if self.replicated:
                del content["checkpoints"]
        if needs := self.instances.wanted:  # whatever was chosen for it
            for key in (*Requirements.model_fields.keys() - {"max_usd_per_hour"}, "chosen_for"):
                content["instances"].pop(key, None)
            content["instances"]["chosen_for"] = needs
        content["keep"]["files"] = content["keep"]["files"] or []  # as it was before there was a default
        if "repeats" not in self.workload.model_fields_set:
            content["workload"]["repeats"] = MEASURED_REPEATS  # its default before
        return content


def read_recipe(text: str, file: str) -> Recipe:
    """Return the recipe that a YAML text contains.

    Args:
        text: The YAML text.
        file: Its name in messages.

    Raises:
        RecipeError: All faults together, one `file:line: path: message` a line, in the order of the lines.
    """
    recipe, faults = read_model(Recipe, text)
    if recipe is None:
        raise RecipeError(
            "\n".join(fault.render(file) for fault in faults),
            "dlcloud schema prints what a recipe may say",
        )
    return recipe


def with_name(text: str, file: str) -> str:
    """Return a recipe's text with a name, of its file if it has none; a text at fault as it is."""
    document = parse(text)
    if not isinstance(document.value, dict) or document.value.get("name") is not None or document.faults:
        return text
    words = re.sub(r"[^a-z0-9]+", "-", PurePath(file).stem.lower()).strip("-")
    name = (words if words[:1].isalpha() else f"run-{words}".strip("-"))[:LONGEST_NAME].rstrip("-")
    named = f"{text.rstrip()}\nname: {name}\n"
    values = parse(named).value
    if isinstance(values, dict) and values.get("name") == name:
        return named
    written = {key: value for key, value in document.value.items() if value is not None}
    return yaml.safe_dump({"name": name, **written}, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A recipe with the text it was read from and the path of that (empty for a bundled one).

    `profile` is the name of the profile that it is launched with; `written` is the text before that profile
    completed it. `region_source` says what named the region; empty for the recipe itself, or the usual one.
    """

    recipe: Recipe
    text: str
    path: str
    profile: str = ""
    written: str = ""
    region_source: str = ""

    def is_of(self, cluster: Cluster) -> bool:
        """True if a cluster was launched from this recipe with this profile.

        A recipe with the same text in another folder sends other files: it is that of another project.
        """
        own = (self.recipe.hash, self.path, self.profile)
        return (cluster.recipe_hash, cluster.recipe_path, cluster.profile) == own


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, for editors."""
    schema = _as_editors_read(Recipe.model_json_schema())
    schema["required"].remove("name")
    for part in schema["$defs"].values():
        keys = part.get("properties", {})
        if "environment" in keys:
            keys["env"] = {**keys["environment"], "description": "The same as environment."}
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


def describe_workload(recipe: Recipe) -> str:
    """Return what runs, with the number of runs of a command: each is a whole one, and may be long."""
    workload = recipe.workload
    if workload.benchmark or workload.elastic is not None:
        return workload.benchmark or f"the command of {recipe.name}"
    if recipe.experiment is not None:
        return f"{recipe.experiment.count} trials of the command of {recipe.name}"
    settings, repeats, count = max(1, len(workload.settings)), workload.repeats, recipe.instances.maximum
    of_each = f" of each of {settings} settings" if settings > 1 else ""
    if count > 1:
        of_each += f", as one job over all {count} instances" if recipe.is_one_job else " on each instance"
    if repeats == 1:
        return f"runs {_program(recipe)} once{of_each}"
    if workload.throughput or workload.json_field or workload.reported:
        # What it reports first in each run is its warm-up.
        return f"runs {_program(recipe)} {repeats * settings} times: {repeats} measurements{of_each}"
    runs = (repeats + 1) * settings
    return f"runs {_program(recipe)} {runs} times: {repeats} measurements and a warm-up{of_each}"


def _program(recipe: Recipe) -> str:
    """Return the script that a command runs, such as train.py; the command of the recipe if it names none."""
    words = (recipe.workload.command or "").split()
    named = [word for word in words if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return named[0].rpartition("/")[2] if named else f"the command of {recipe.name}"


class CodeRecipe(Recipe):
    """A recipe built in Python: `Recipe(name="sweep", instances={"types": ["c7i.large"]}, workload={...})`.

    The keys are those of a recipe in YAML, mappings and lists stand for its parts, and numbers are read as if
    they were written there. Paths are relative to the current folder.

    Raises:
        RecipeError: All faults together, with the paths of their keys.
    """

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  as any key of a recipe
        content = {name: _as_written(value) for name, value in values.items() if value is not None}
        try:
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        except yaml.YAMLError as error:
            raise RecipeError(f"a recipe consists of texts, numbers, lists and mappings: {error}") from error
        recipe, faults = read_model(Recipe, text)
        if recipe is None:
            message = "\n".join(fault.describe() for fault in faults)
            raise RecipeError(message, "dlcloud schema prints what a recipe may say")
        super().__init__(**{name: getattr(recipe, name) for name in recipe.model_fields_set})


def _as_written(value: object) -> object:
    """Return a value as YAML has it: plain mappings, lists and scalars."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(value, Mapping):
        return {str(name): _as_written(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_as_written(inner) for inner in value]
    if value is None:
        return None
    plain = value.value if isinstance(value, Enum) else value
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
