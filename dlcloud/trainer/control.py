"""What the controller wants, as a file on each instance: written over SSH, whole, by renaming; read at steps.

    {"generation": 3, "minimum": 2, "workers": 4, "drain": null,
     "coordinator": "10.0.0.7:29510", "coordinates": false, "step": 812, "least": 811}

generation  grows with every change of coordinator or plan; a file with a lower one than was seen is ignored
minimum     below so many workers nobody commits a step: each waits, on a checkpoint, for others
workers     how many the controller wants at present, or null; for the records only
drain       why this instance is to leave after its step, or null
coordinator where the lighthouse is, the ledger at the next port; null is where the agent was started with
coordinates whether that is this instance: its agent runs them from now on
step        steps known to be committed when the coordinator took over; what a new ledger begins with
least       a state with fewer steps behind it is not trained on: a peer has a newer one

A missing file means {"generation": 0, "minimum": 1, "workers": null, "drain": null, "coordinator": null,
"coordinates": false, "step": 0, "least": 0}.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the controller wants."""

    generation: int = 0
    minimum: int = 1
    workers: int | None = None
    drain: str | None = None
    coordinator: str | None = None
    coordinates: bool = False
    step: int = 0
    least: int = 0


class ControlError(ValueError):
    """The file does not say what it should."""


def parse(text: str) -> Control:
    """Read a control file; keys that are not known are left to newer readers.

    Raises:
        ControlError: It is not JSON, or a value is not of its kind.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ControlError(f"not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ControlError("not a JSON object")
    workers = given.get("workers")
    return Control(
        generation=_whole(given, "generation", 0, least=0),
        minimum=_whole(given, "minimum", 1, least=1),
        workers=None if workers is None else _whole(given, "workers", 0, least=0),
        drain=_text(given, "drain"),
        coordinator=_address(given),
        coordinates=given.get("coordinates") is True,
        step=_whole(given, "step", 0, least=0),
        least=_whole(given, "least", 0, least=0),
    )


def _text(given: dict[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ControlError(f"{name} is neither a text nor null")
    return value


def _address(given: dict[str, Any]) -> str | None:
    address = _text(given, "coordinator")
    host, _, port = (address or "").rpartition(":")
    if address is not None and not (host and port.isdecimal()):
        raise ControlError(f"coordinator is not HOST:PORT: {address!r}")
    return address


def _whole(given: dict[str, Any], name: str, default: int, *, least: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ControlError(f"{name} is not a whole number of at least {least}: {value!r}")
    return value


@dataclass(slots=True)
class ControlFile:
    """Follows a control file; one that cannot be read changes nothing.

    Args:
        path: The file; None is never there.
    """

    path: Path | None
    fault: str | None = field(default=None, init=False)
    _last: Control = field(default_factory=Control, init=False)
    _stamp: tuple[int, int, int] | None = field(default=None, init=False)

    def read(self) -> Control:
        """Return what the controller wants now; `fault` tells what is wrong with the file, if anything."""
        try:
            status = self.path.stat() if self.path else None
        except OSError:
            status = None
        if self.path is None or status is None:
            return self._last
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            self._take(self.path)
        return self._last

    def _take(self, path: Path) -> None:
        try:
            wanted = parse(path.read_text())
        except (OSError, UnicodeDecodeError, ControlError) as error:
            self.fault = f"{path}: {error}"
            return
        self.fault = None
        if wanted.generation >= self._last.generation:
            self._last = wanted


def write(path: Path, wanted: Control) -> None:
    """Write a control file, whole or not at all."""
    values = {name: getattr(wanted, name) for name in Control.__dataclass_fields__}
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(json.dumps(values) + "\n")
    unfinished.rename(path)
