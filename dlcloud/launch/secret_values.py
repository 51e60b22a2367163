"""Look the values of a recipe's secrets up, before anything is launched. They are kept in memory only."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlcloud.model.errors import CloudError, DlcloudError, RecipeError
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.secret_source import SecretSource, SourceKind
from dlcloud.recipe.workload import Workload, read_source

LARGEST_VALUE = 1 << 16
"""Bytes of a value, as in Secrets Manager; Linux takes twice as much in one variable."""

Fetch = Callable[[SecretSource], str]
"""Returns the value that AWS keeps; raises CloudError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLookup:
    """Looks values up.

    Args:
        environ: The caller's environment.
        folder: Files are relative to it.
        fetch: For what AWS keeps.
    """

    environ: Mapping[str, str]
    folder: Path
    fetch: Fetch

    def environment_of(self, workload: Workload) -> JobEnvironment:
        """Return the environment of a workload's program.

        Raises:
            RecipeError: Values are missing; the message names all of them, and has none of the others.
            CloudError: AWS does not give one.
        """
        values: dict[str, str] = {}
        faults: list[DlcloudError] = []
        for name, source in workload.secrets.items():
            try:
                values[name] = self._value(name, read_source(source))
            except (RecipeError, CloudError) as error:
                faults.append(error)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            message, hints = "\n".join(fault.message for fault in faults), [fault.hint for fault in faults]
            raise RecipeError(message, next(filter(None, hints), ""))
        return JobEnvironment(variables=workload.environment, secrets=values)

    def _value(self, name: str, source: SecretSource) -> str:
        match source.kind:
            case SourceKind.ENVIRONMENT:
                value = self._variable(name, source)
            case SourceKind.FILE:
                value = self._content(name, source)
            case _:
                value = self.fetch(source)
        if source.key:
            value = _member(name, source, value)
        if not value or "\0" in value or len(value.encode()) > LARGEST_VALUE:
            fault = "is empty" if not value else "has a zero byte" if "\0" in value else "is over 64 KiB"
            raise RecipeError(f"secret {name}: the value of {source} {fault}, which no variable can hold")
        return value

    def _variable(self, name: str, source: SecretSource) -> str:
        value = self.environ.get(source.location)
        if not value:
            raise RecipeError(
                f"secret {name}: the variable {source.location} is not set here",
                f"read -rs {source.location} && export {source.location}, then run it again",
            )
        return value

    def _content(self, name: str, source: SecretSource) -> str:
        path = self.folder / Path(source.location).expanduser()
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_VALUE + 2)
            return content.decode().removesuffix("\n").removesuffix("\r")
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RecipeError(f"secret {name}: cannot read {path}: {reason}") from error
        except UnicodeDecodeError:
            raise RecipeError(f"secret {name}: {path} is not text (UTF-8)") from None


def _member(name: str, source: SecretSource, value: str) -> str:
    """Return a member of a value that is a JSON object."""
    try:
        content = json.loads(value)
    except ValueError:
        content = None
    if not isinstance(content, dict) or source.key not in content:
        fault = f"has no key {source.key!r}" if isinstance(content, dict) else "is no JSON object"
        # Without `from`: the cause would carry the value.
        raise RecipeError(f"secret {name}: the value of {source} {fault}") from None
    member = content[source.key]
    return member if isinstance(member, str) else json.dumps(member)
