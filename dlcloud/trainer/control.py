"""The control file of an instance: written by the controller over SSH, whole, by renaming; read at each step.

    {"generation": 3, "minimum": 2, "drain": null, "coordinator": "10.0.0.7:29510", "coordinates": false,
     "step": 812, "least": 811}

generation  grows with every change of coordinator; a file with a lower one than was read before is ignored
minimum     instances that every step needs; below it the workers wait, on a checkpoint, for others
drain       why this instance is to leave after its step, or null
coordinator HOST:PORT of the lighthouse, the ledger has the next port; null: as the agent was started
coordinates true if that is this instance: its agent runs lighthouse and ledger from now on
step        steps that were committed when the coordinator took over; a new ledger begins with it
least       a state with fewer committed steps is not trained on: a peer has a newer one

A missing file means the defaults of `Control`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The content of a control file."""

    generation: int = 0
    minimum: int = 1
    drain: str | None = None
    coordinator: str | None = None
    coordinates: bool = False
    step: int = 0
    least: int = 0


class ControlError(ValueError):
    """A control file is not JSON, or a value has the wrong type."""


def parse(text: str) -> Control:
    """Read a control file; unknown keys are ignored.

    Raises:
        ControlError: It is not JSON, or a value has the wrong type.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ControlError("not a JSON object")
    return Control(
        generation=_whole(values, "generation", 0, least=0),
        minimum=_whole(values, "minimum", 1, least=1),
        drain=_text(values, "drain"),
        coordinator=_address(values),
        coordinates=values.get("coordinates") is True,
        step=_whole(values, "step", 0, least=0),
        least=_whole(values, "least", 0, least=0),
    )


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise ControlError(f"{name} is neither a text nor null")
    return value


def _address(values: dict[str, Any]) -> str | None:
    address = _text(values, "coordinator")
    host, _, port = (address or "").rpartition(":")
    if address is not None and not (host and port.isdecimal()):
        raise ControlError(f"coordinator is not HOST:PORT: {address!r}")
    return address


def _whole(values: dict[str, Any], name: str, default: int, *, least: int) -> int:
    value = values.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ControlError(f"{name} is not a whole number of at least {least}: {value!r}")
    return value


@dataclass(slots=True)
class ControlFile:
    """Follows a control file; one that cannot be read changes nothing.

    Attributes:
        path: None is a file that never exists.
        fault: Why the file cannot be read; None if it can.
    """

    path: Path | None
    fault: str | None = field(default=None, init=False)
    _control: Control = field(default_factory=Control, init=False)
    _stamp: tuple[int, int, int] | None = field(default=None, init=False)

    def read(self) -> Control:
        """Return the newest content that could be read."""
        try:
            status = self.path.stat() if self.path else None
        except OSError:
            status = None
        if self.path is None or status is None:
            return self._control
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            self._parse(self.path)
        return self._control

    def _parse(self, path: Path) -> None:
        try:
            control = parse(path.read_text())
        except (OSError, UnicodeDecodeError, ControlError) as error:
            self.fault = f"{path}: {error}"
            return
        self.fault = None
        if control.generation >= self._control.generation:
            self._control = control
