"""`instances`: which ones, how many, how they are paid for, and which reserved capacity comes first.

`Requirements` are the keys that choose types; `dlcloud.planning.choice` resolves them.
"""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from dlcloud.model.cluster import NEW_GROUP
from dlcloud.model.instance import Market
from dlcloud.recipe.values import INSTANCE_PROFILE, KMS_KEY, Form, KmsKey, Part, ProfileName, Texts, TypeNames

OPEN, NONE = "open", "none"
_NAME = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})|tag:[^=]{1,128}=.{0,256}|open|none")


class Reservations(Part):
    """Capacity Reservations and Capacity Blocks to take idle instances of first."""

    use: Texts = Field(
        description="cr-…, tag:KEY=VALUE, or open: every open reservation. none: no reservation, open "
        "ones included.",
    )
    keep_free: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Number of reserved instances to leave idle for others. An elastic training releases "
        "instances while fewer are idle.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.use:
            raise ValueError("names no reservation")
        for name in self.use:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is neither cr-… nor tag:KEY=VALUE, open or none")
        if NONE in self.use and (len(self.use) > 1 or self.keep_free):
            raise ValueError("none stands alone: with it no reservation is used")
        if len(set(self.use)) < len(self.use):
            raise ValueError("a reservation is named twice")
        return self

    @property
    def ids(self) -> list[str]:
        """The reservations that are named by their ids."""
        return [name for name in self.use if name.startswith("cr-")]

    @property
    def is_used(self) -> bool:
        """True unless it is `none`."""
        return self.use != [NONE]


def _as_mapping(value: object) -> object:
    """Return names alone as what they are short for."""
    return {"use": value} if isinstance(value, str | list) else value


AnyReservations = Annotated[
    Reservations, BeforeValidator(_as_mapping, json_schema_input_type=Reservations | list[str] | str)
]
RESERVATIONS: Any = Field(
    default=None,
    description="Capacity Reservations and Capacity Blocks to use before every market: open, none, "
    "cr-…, tag:KEY=VALUE, or a list. {use: …, keep_free: 1} keeps some for others.",
)


PlacementGroupName = Annotated[
    str,
    Form(
        r"([\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?)?",
        "a placement group's name, of at most 255 characters",
    ),
]
"""Source: EC2 API reference, CreatePlacementGroup: up to 255 ASCII characters."""
PLACEMENT_GROUP: Any = Field(
    default="",
    description="cluster: a cluster placement group that dlcloud makes and deletes; or the name of an"
    " existing one.",
)
EFA: Any = Field(
    default=False,
    description="Give instances an Elastic Fabric Adapter. Types without one are refused.",
)


Image = Annotated[
    str,
    Form(
        r"auto|ami-[0-9a-f]+|dlcloud-[a-z0-9-]+|/[A-Za-z0-9_./-]+",
        "auto, an AMI's id (ami-…), an image of dlcloud (dlcloud-…), or an SSM parameter (/…)",
    ),
]
LoginName = Annotated[
    str, Form(r"[a-z_][a-z0-9_-]*", "a login name: lower-case letters, digits, _ and -, no digit first")
]


class Count(Part):
    """A range of instances: the run continues with any number from `min` to `max`."""

    min: int = Field(ge=1, le=1000, description="Fewest instances; `up` fails with fewer.")
    max: int = Field(ge=1, le=1000, description="Number that is requested.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self


def _count_form(value: object) -> str:
    return "range" if isinstance(value, dict | Count) else "number"


def _range_of(value: object) -> object:
    """Return `1-4` as the range that it is short for."""
    match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", value) if isinstance(value, str) else None
    return value if match is None else {"min": match[1], "max": match[2]}


_Count = Annotated[
    Annotated[int, Field(ge=1, le=1000), Tag("number")] | Annotated[Count, Tag("range")],
    Discriminator(_count_form),
]
AnyCount = Annotated[
    _Count,
    BeforeValidator(
        _range_of, json_schema_input_type=_Count | Annotated[str, Form(r"\d+ ?- ?\d+", "a range, as 1-4")]
    ),
]


def _is_ordered(text: str) -> str:
    """Return a range; refuse one with a least that is more than the most, or a most of none."""
    least, dash, most = text.rstrip("+").partition("-")
    if dash and (float(least) > float(most) or float(most) == 0):
        raise ValueError(f"the least is {least}, the most {most}: no instance has that")
    return text


def _is_some(gpu: str) -> str:
    """Return a GPU with their number; refuse none of it."""
    count = gpu.partition(":")[2]
    if count and _is_ordered(count) == "0":
        raise ValueError("write none for types without a GPU")
    return gpu


_RangeText = Annotated[str, Form(r"\d+(\.\d+)?(\+|-\d+(\.\d+)?)?", "the least, as 16, or a range, as 16-32")]
_Range = Annotated[
    _RangeText,
    AfterValidator(_is_ordered),
    BeforeValidator(
        lambda value: f"{value:g}" if isinstance(value, int | float) else value,
        json_schema_input_type=Annotated[float, Field(ge=0)] | _RangeText,
    ),
]
_Gpu = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9 +().-]*(:\d+(\+|-\d+)?)?",
        "a GPU's name, as L4, with their number if it is not one, as L4:2 or L4:1+; or any, or none",
    ),
    AfterValidator(_is_some),
]


class Requirements(Part):
    """Which instance types: by name, or by what they must have."""

    types: TypeNames = Field(
        default_factory=list,
        description="Instance types, or patterns (g6.*). Without patterns or requirements they are tried in "
        "this order on demand; on spot EC2 chooses by price and capacity.",
    )
    gpu: _Gpu | None = Field(
        default=None, description="The GPUs of an instance: L4 (one), L4:2, L4:1+ (any number), any or none."
    )
    gpu_memory_gib: _Range | None = Field(
        default=None, description="Memory of each GPU: 24 (at least; as sold), or a range, 16-48."
    )
    vcpus: _Range | None = Field(default=None, description="vCPUs: 16 (at least), 16-32, or 16-16 (exactly).")
    memory_gib: _Range | None = Field(default=None, description="Memory: 64 (at least), or 64-128.")
    architecture: Literal["x86_64", "arm64"] | None = Field(
        default=None, description="Architecture of the types. Default: x86_64, if a type is left with it."
    )
    instruction_set: Texts = Field(
        default_factory=list, description="Instruction sets that the processor must have: avx512_vnni, amx."
    )
    max_usd_per_hour: Annotated[Decimal, AfterValidator(Decimal.normalize)] | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="The most that an instance may cost an hour; dearer types and markets are left out.",
    )
    exclude: TypeNames = Field(default_factory=list, description="Types that are not used: t3.*")

    def describe(self) -> str:
        """Return what the types are chosen for, as it is written; empty if `types` names each of them."""
        keys = ("gpu", "gpu_memory_gib", "vcpus", "memory_gib", "architecture", "instruction_set", "exclude")
        values = {key: value for key in keys if (value := getattr(self, key))}
        if not values and not any(set("*?") & set(name) for name in self.types):
            return ""
        if self.types:
            values["types"] = self.types
        return ", ".join(
            f"{key}: {' '.join(value) if isinstance(value, list) else value}" for key, value in values.items()
        )


class Instances(Requirements):
    """Which instances, and how they are paid for."""

    chosen_for: str = Field(
        default="", description="Written by dlcloud: the requirements that `types` were chosen for."
    )
    count: AnyCount = Field(default=1, description="A number, or a range: 1-4, or {min: 1, max: 4}.")
    market: Literal["on-demand", "spot", "spot-then-on-demand"] = Field(
        default="on-demand",
        description="spot-then-on-demand falls back to on-demand if there is no spot capacity.",
    )
    on_demand_base: int = Field(
        default=0,
        ge=0,
        description="Number of instances that are on-demand; the others are spot.",
    )
    zones: Texts = Field(default_factory=list, description="Availability Zones to try; all if empty.")
    spread_zones: bool = Field(
        default=False,
        description="Spread the instances of one job over zones. By default they share one zone if it has"
        " capacity, because traffic between zones is billed.",
    )
    image: Image = Field(
        default="auto",
        description="auto (Ubuntu 24.04, or AWS's Deep Learning AMI for NVIDIA GPUs), ami-…, dlcloud-… "
        "(made by `dlcloud image`), or the path of an SSM parameter.",
    )
    user: LoginName = Field(default="ubuntu", description="The login user of the image.")
    disk_gib: int = Field(
        default=50,
        ge=8,
        le=16384,
        description="Least size of the encrypted gp3 root volume.",
    )
    profile: ProfileName = INSTANCE_PROFILE
    kms_key: KmsKey = KMS_KEY
    tenancy: Literal["default", "dedicated"] = Field(
        default="default",
        description="dedicated: hardware that no other AWS account uses; it costs more than the plan shows.",
    )
    reservations: AnyReservations | None = RESERVATIONS
    placement_group: PlacementGroupName = PLACEMENT_GROUP
    efa: bool = EFA

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not self.types and not self.describe():
            raise ValueError("name types, or what they must have: gpu, gpu_memory_gib, vcpus, memory_gib")
        return self

    @model_validator(mode="after")
    def _base_under_spot(self) -> Self:
        if self.on_demand_base and self.market == "on-demand":
            raise ValueError("on_demand_base belongs to market: spot or spot-then-on-demand")
        if self.on_demand_base > self.maximum:
            raise ValueError(f"on_demand_base ({self.on_demand_base}) is more than count ({self.maximum})")
        return self

    @model_validator(mode="after")
    def _reserved_on_shared_hardware(self) -> Self:
        if self.tenancy != "default" and self.uses_reservations:
            raise ValueError("reservations have default tenancy: leave tenancy or reservations out")
        return self

    @model_validator(mode="after")
    def _near_each_other(self) -> Self:
        if self.placement_group and self.spread_zones:
            raise ValueError("a placement group is in one zone: leave spread_zones or placement_group out")
        if self.placement_group == NEW_GROUP and self.uses_reservations:
            raise ValueError(
                "no reservation is in a new placement group: name that of the reservations; "
                "instances of a Capacity Block are near each other without one"
            )
        return self

    @property
    def wanted(self) -> str:
        """What the types are, or were, chosen for; empty if the recipe names them."""
        return self.chosen_for or self.describe()

    @property
    def uses_reservations(self) -> bool:
        """True if reserved capacity is taken first."""
        return self.reservations is not None and self.reservations.is_used

    @property
    def own_group(self) -> str:
        """The name of the placement group of the user's own; empty for none, and for dlcloud's."""
        return "" if self.placement_group == NEW_GROUP else self.placement_group

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
