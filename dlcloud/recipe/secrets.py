"""`workload.secrets`: names of variables, and where their values come from; a recipe never holds a value."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from dlcloud.model.secret_source import SecretSource, SourceKind
from dlcloud.recipe.document import UNQUOTED
from dlcloud.recipe.part import VariableName

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


def _named(value: object) -> object:
    """Return a name, or a list of names, as a mapping to variables of the same names."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        return value
    return {name: f"{SourceKind.ENVIRONMENT.value}:{name}" for name in names if isinstance(name, str)}


def _check(text: str) -> str:
    try:
        return str(read_source(text))
    except ValueError as error:
        raise PydanticCustomError(UNQUOTED, "{fault}", {"fault": str(error)}) from None


_Sources = dict[VariableName, Annotated[str, AfterValidator(_check)]]
Secrets = Annotated[
    _Sources, BeforeValidator(_named, json_schema_input_type=_Sources | list[VariableName] | VariableName)
]
