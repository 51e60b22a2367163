"""What the keys of a recipe are made of: the base of its parts, forms of texts, tags, names in AWS."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from dlcloud.model.cluster import NAME_TAG


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text: `Annotated[str, Form(r"[a-z]+", "lower-case letters")]`.

    Args:
        pattern: A regular expression that the whole text matches; it is the same in the JSON Schema.
        words: Completes the message "must be …" of a text of another form.
    """

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Check texts when they are read."""
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """State the pattern in the JSON Schema."""
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"must be {self.words}")
        return text


LONGEST_NAME = 31
Name = Annotated[
    str,
    Form(r"[a-z][a-z0-9-]{0,30}", "lower-case letters, digits and hyphens, a letter first, 31 at most"),
]
TypeName = Annotated[
    str, Form(r"[a-z][a-z0-9*?-]*\.[a-z0-9*?-]+", "an instance type, as c7i.xlarge, or a pattern, as c7i.*")
]


def listed(value: object) -> object:
    """Return a single value as a list of it."""
    return [value] if isinstance(value, str) else value


_SomeTypes = Annotated[list[TypeName], Field(min_length=1)]
TypeNames = Annotated[list[TypeName], BeforeValidator(listed, json_schema_input_type=_SomeTypes | TypeName)]
Texts = Annotated[list[str], BeforeValidator(listed, json_schema_input_type=list[str] | str)]
VariableName = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name: letters, digits and _, no digit first")
]
Environment = dict[VariableName, str]
ENVIRONMENT_KEYS = AliasChoices("environment", "env")
"""How the key of an `Environment` may be spelled."""


def _lines(value: object) -> object:
    """Return the lines of a text, without comments; a list as it is."""
    if not isinstance(value, str):
        return value
    return [line for text in value.splitlines() if (line := re.sub(r"(^|\s)#.*$", "", text).strip())]


def _script(value: object) -> object:
    """Return the lines of a list as one text."""
    are_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if are_lines and isinstance(value, list) else value


Script = Annotated[str, BeforeValidator(_script, json_schema_input_type=str | list[str])]
"""Shell commands: a text, or a list of them."""

Lines = Annotated[list[str], BeforeValidator(_lines, json_schema_input_type=str | list[str])]


class Part(BaseModel):
    """A mapping of a recipe: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_absent(cls, written: Any) -> Any:  # noqa: ANN401  whatever is written there
        """Leave out keys with an empty value: `setup:` alone says nothing, and means the default."""
        if isinstance(written, dict):
            return {key: value for key, value in written.items() if value is not None}
        return written


# Source: EC2 user guide, "Tag restrictions": fifty tags, of which ten are left to dlcloud and AWS.
MOST_TAGS = 40
LONGEST_KEY = 128
LONGEST_VALUE = 256
_TAG_TEXT = re.compile(r"[\w\s.:/=+@-]*")


def _refuse_tags(tags: dict[str, str]) -> dict[str, str]:
    """Refuse tags that AWS would refuse, and those that are dlcloud's own."""
    if len(tags) > MOST_TAGS:
        raise ValueError(f"has {len(tags)} tags; at most {MOST_TAGS} fit next to dlcloud's own")
    for key, value in tags.items():
        if key == NAME_TAG or key.lower().startswith(("aws:", "dlcloud:")):
            raise ValueError(f"the tag {key!r} is set by AWS or by dlcloud")
        if not 0 < len(key) <= LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise ValueError(f"a tag has a key of 1 to {LONGEST_KEY} and a value of at most {LONGEST_VALUE}")
        if not _TAG_TEXT.fullmatch(key + value):
            raise ValueError(
                f"the tag {key!r} has characters other than letters, digits, spaces and _.:/=+-@"
            )
    return tags


Tags = Annotated[dict[str, str], AfterValidator(_refuse_tags)]

ProfileName = Annotated[
    str, Form(r"([\w+=,.@-]{1,128})?", "the name of an instance profile, without its path")
]
"""The name of an instance profile. Source: IAM API reference, CreateInstanceProfile."""

KmsKey = Annotated[
    str,
    Form(
        r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key|alias)/[\w/-]+|alias/[\w/-]+|[0-9a-f-]{36}"
        r"|mrk-[0-9a-f]{32})?",
        "a KMS key: its id, alias/NAME, or the ARN of either",
    ),
]
"""A KMS key as EC2 takes it: its id, its alias, or the ARN of either."""

PolicyArn = Annotated[str, Form(r"(arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+)?", "a policy's ARN")]

TAGS: Any = Field(
    default_factory=dict,
    description="Tags on everything that is created.",
)
BOUNDARY = Field(default="", description="ARN of the permissions boundary of roles that dlcloud creates.")
INSTANCE_PROFILE = Field(
    default="",
    description="Name of an existing instance profile; instances have its role. Not with --detach.",
)
KMS_KEY = Field(
    default="",
    description="KMS key of the root volume: an id, alias/… or an ARN. Default: the account's for EBS.",
)
