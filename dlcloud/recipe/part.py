"""What every key of a recipe is made of: the base of its models and the forms of its texts."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

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


def _lines(value: object) -> object:
    """Return the lines of a text, without comments; a list as it is."""
    if not isinstance(value, str):
        return value
    return [line for text in value.splitlines() if (line := text.partition("#")[0].strip())]


Lines = Annotated[list[str], BeforeValidator(_lines, json_schema_input_type=str | list[str])]


class Part(BaseModel):
    """A mapping of a recipe: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
