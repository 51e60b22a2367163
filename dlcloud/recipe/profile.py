"""Profiles of the configuration file: the account to use, and what its resources need in every recipe."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from dlcloud.model.account import Login
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.data import S3Uri
from dlcloud.recipe.document import parse, read_model
from dlcloud.recipe.instances import RESERVATIONS, AnyReservations
from dlcloud.recipe.network import Network
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.recipe.values import (
    BOUNDARY,
    INSTANCE_PROFILE,
    KMS_KEY,
    TAGS,
    Form,
    KmsKey,
    Part,
    PolicyArn,
    ProfileName,
    Tags,
)

RoleArn = Annotated[str, Form(r"(arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+)?", "a role's ARN")]
EndpointUrl = Annotated[
    str, Form(r"https?://[^\s/]+(/\S*)?", "an address that begins with http:// or https://")
]
Region = Annotated[str, Form(r"([a-z]{2}(-[a-z]+)+-\d)?", "a region, as us-east-1")]


class Profile(Part):
    """The settings of one account, or of one place in it."""

    cloud: Literal["aws", "local"] = Field(
        default="aws", description="The recipes that the profile is for: those with this `cloud`."
    )
    aws_profile: str = Field(
        default="", description="A profile of ~/.aws/config, with its keys, its SSO or its own role."
    )
    role: RoleArn = Field(default="", description="The ARN of a role to assume with these credentials.")
    external_id: str = Field(default="", description="The external id that the role asks for.")
    session_name: Annotated[str, Form(r"([\w+=,.@-]{2,64})?", "2 to 64 letters, digits and _+=,.@-")] = Field(
        default="", description="The name of the role's sessions."
    )
    mfa_serial: str = Field(
        default="", description="The MFA device whose code the role asks for; it is asked for once a session."
    )
    role_minutes: int = Field(
        default=60, ge=15, le=720, description="How long a session of the role is valid."
    )
    endpoints: dict[
        Annotated[str, Form(r"[a-z][a-z0-9-]*", "the name of a service, as ec2")], EndpointUrl
    ] = Field(
        default_factory=dict,
        description="URLs of private endpoints by service (ec2, sts, s3, ...); AWS's own for all others. "
        "AWS_ENDPOINT_URL and endpoint_url of ~/.aws/config are not followed.",
    )
    region: Region = Field(default="", description="The region of recipes that name none.")
    network: Network | None = Field(default=None, description="As `network` of a recipe, key by key.")
    tags: Tags = TAGS
    instance_profile: ProfileName = INSTANCE_PROFILE
    kms_key: KmsKey = KMS_KEY
    permissions_boundary: PolicyArn = BOUNDARY
    reservations: AnyReservations | None = RESERVATIONS

    @model_validator(mode="after")
    def _role_of_its_settings(self) -> "Profile":
        alone = [name for name in ("external_id", "session_name", "mfa_serial") if getattr(self, name)]
        if alone and not self.role:
            raise ValueError(f"{alone[0]} belongs to role")
        return self

    @property
    def login(self) -> Login:
        """Return how to log in."""
        return Login(
            aws_profile=self.aws_profile,
            role=self.role,
            external_id=self.external_id,
            session_name=self.session_name,
            mfa_serial=self.mfa_serial,
            role_minutes=self.role_minutes,
            endpoints=dict(self.endpoints),
        )

    @property
    def _network(self) -> dict[str, Any]:
        """Return the network's keys that are written."""
        return (
            {}
            if self.network is None
            else _texts(self.network.model_dump(mode="json", exclude_defaults=True))
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """Return what recipes have that do not say otherwise, in a recipe's form."""
        instances = {
            "profile": self.instance_profile,
            "kms_key": self.kms_key,
            "reservations": None if self.reservations is None else _texts(self.reservations.model_dump()),
        }
        values = {
            "region": self.region,
            "network": self._network,
            "tags": dict(self.tags),
            "permissions_boundary": self.permissions_boundary,
            "instances": {key: value for key, value in instances.items() if value},
        }
        return {key: value for key, value in values.items() if value}


class MonthlyBudget(Part):
    """The most that a month may cost, in all profiles together."""

    monthly_usd: Annotated[Decimal, Field(gt=0, le=10_000_000)] | None = Field(
        default=None, description="USD; without it, the limit that the bucket states."
    )
    shared: S3Uri | None = Field(
        default=None, description="s3://BUCKET/PREFIX: the limit holds for everybody who names the same one."
    )
    rehearsals: bool = Field(default=False, description="Count rehearsals too, to try the limit out.")


class Configuration(Part):
    """The configuration file."""

    budget: MonthlyBudget | None = Field(default=None, description="The limit of a month.")

    default: str = Field(default="", description="The profile of commands without --profile.")
    profiles: dict[
        Annotated[str, Form(r"[A-Za-z0-9][\w.-]{0,63}", "letters, digits, _, . and -, 64 at most")], Profile
    ] = Field(default_factory=dict, description="Profiles by name.")

    @model_validator(mode="after")
    def _has_default(self) -> "Configuration":
        if self.default and self.default not in self.profiles:
            raise ValueError(f"default: there is no profile {self.default}")
        return self


def read_configuration(text: str, file: str) -> Configuration:
    """Return what a configuration file says.

    Raises:
        RecipeError: All faults together, one `file:line: path: message` a line.
    """
    if parse(text).value is None and not parse(text).faults:
        return Configuration()
    configuration, faults = read_model(Configuration, text)
    if configuration is None:
        raise RecipeError("\n".join(fault.render(file) for fault in faults), "see docs/profiles.md")
    return configuration


def apply_profile(text: str, recipe: Recipe, profile: Profile | None, file: str) -> tuple[Recipe, str]:
    """Return a recipe with what a profile adds to it, and the text of that; a recipe's own values stay.

    Args:
        text: The recipe's.
        recipe: What it says.
        profile: None changes nothing, and neither does one for another cloud.
        file: The recipe's name in messages.

    Raises:
        RecipeError: The recipe and the profile together make no sense.
    """
    written = parse(text).value
    if profile is None or profile.cloud != recipe.cloud or not isinstance(written, dict):
        return recipe, text
    merged = merge(written, profile.defaults)
    if merged == written:
        return recipe, text
    merged_text = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)
    return read_recipe(merged_text, f"{file}, with the profile"), merged_text


def merge(written: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written with the defaults for keys that are not, at any depth."""
    merged: dict[str, Any] = dict(written)
    for key, default in defaults.items():
        value = merged.get(key)
        if isinstance(default, Mapping) and (value is None or isinstance(value, Mapping)):
            merged[key] = merge(value or {}, default)
        elif value is None:
            merged[key] = default
    return merged


def _texts(value: Any) -> Any:  # noqa: ANN401  a tree of JSON
    """Return scalars as the texts that a recipe's are."""
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner) for inner in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
