"""Where the value of a secret is; dlcloud itself keeps none."""

from dataclasses import dataclass
from enum import Enum

CONTROLLER_PREFIX = "DLCLOUD_SECRET_"
"""The prefix of names of secrets in a detached controller's environment, which has an AWS_… of its own."""


class SourceKind(Enum):
    """Where the value of a secret is; the value is the prefix in a recipe."""

    ENVIRONMENT = "env"
    FILE = "file"
    PARAMETER = "ssm"
    SECRETS_MANAGER = "secretsmanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Where a secret's value is.

    Attributes:
        kind: The place.
        location: A variable, a path, or a name or ARN there.
        key: Of the value, a JSON object; empty for the whole value.
    """

    kind: SourceKind
    location: str
    key: str = ""

    def __str__(self) -> str:
        """Return it as a recipe states it."""
        return f"{self.kind.value}:{self.location}{f'#{self.key}' if self.key else ''}"
