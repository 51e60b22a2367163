"""What every key of a recipe is made of: the base of its models and the forms of its texts."""

from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

LONGEST_NAME = 31
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
TypeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")]


def listed(value: object) -> object:
    """Return a single value as a list of it."""
    return [value] if isinstance(value, str) else value


_SomeTypes = Annotated[list[TypeName], Field(min_length=1)]
TypeNames = Annotated[_SomeTypes, BeforeValidator(listed, json_schema_input_type=_SomeTypes | TypeName)]
Texts = Annotated[list[str], BeforeValidator(listed, json_schema_input_type=list[str] | str)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Environment = dict[VariableName, str]
ENVIRONMENT_KEYS = AliasChoices("environment", "env")
"""How the key of an `Environment` may be spelled."""


def _lines(value: object) -> object:
    """Return the lines of a text, without comments; a list as it is."""
    if not isinstance(value, str):
        return value
    return [line for text in value.splitlines() if (line := text.partition("#")[0].strip())]


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
