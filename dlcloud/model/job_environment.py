"""The environment of a program on an instance: plain variables, and secrets that no record may hold."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from dlcloud.model.secret_source import CONTROLLER_PREFIX

MASKED_LENGTH = 8
"""Least length, in characters, of a secret that is masked in output: a shorter one would mask other words."""

NAMES_VARIABLE = "DLCLOUD_SECRETS"
"""The variable in which a program finds the names of its secrets: what masks them reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """Variables of a program in addition to those that it inherits; its text form has no secret."""

    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.variables or self.secrets)

    @property
    def unmasked(self) -> list[str]:
        """The names of secrets that are too short to be masked where a program prints them."""
        return sorted(name for name, value in self.secrets.items() if len(value) < MASKED_LENGTH)

    def encode(self, layout: Mapping[str, object] | None = None) -> bytes:
        """Return what `templates/job.py` reads; `layout` is what it makes of the job's folder first."""
        given = {"variables": dict(self.variables), "secrets": dict(self.secrets), **(layout or {})}
        return json.dumps(given).encode()

    def of_controller(self) -> "JobEnvironment":
        """Return the environment of a detached cluster's controller, which passes the secrets on.

        They have other names there: a training's AWS_ACCESS_KEY_ID must not become the controller's.
        """
        return JobEnvironment(secrets={CONTROLLER_PREFIX + name: v for name, v in self.secrets.items()})
