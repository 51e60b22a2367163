"""What a worker is to do: once from its agent, in `Settings`, and at each step by the control file.

An agent passes the settings in one variable; without it a script trains alone. The controller writes the
control file over SSH, whole, by renaming; agent and workers follow it with `ControlFile`:

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
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "DLCLOUD_TRAINER"
RUN_ALONE = "alone"

LIGHTHOUSE_PORT = 29510
LEDGER_PORT = LIGHTHOUSE_PORT + 1
CHECKPOINT_S = 60

HEARTBEAT_MS = 5000
"""A process that ends closes its connections, which is noticed immediately. So this limit is for machines and
processes that stop without a word, and must be longer than what they live through: a processor shared with
other programs, a copy of gigabytes that holds Python's lock, a virtual machine that is paused, a packet that
TCP sends again after 0.2, 0.6, 1.4 and 3 s. torchft's lighthouse has the same default.
Source: torchft 0.2.0, src/lighthouse.rs, heartbeat_timeout_ms; RFC 6298."""

JOIN_MS = 5000
"""A worker that is late by less, with heartbeats, keeps its place: to leave it behind and to take it back
costs two changes of connections and a transfer of the state."""


def ledger_address(lighthouse: str) -> str:
    """Return `HOST:PORT` of the ledger of the lighthouse at `HOST:PORT`: it has the next port."""
    host, _, port = lighthouse.rpartition(":")
    return f"{host}:{int(port) + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a worker waits for others.

    Attributes:
        quorum_s: For an agreement on the participants of a step, before the request is repeated.
        connect_s: For a connection to another worker of a new quorum.
        heal_s: For a step in which a peer may be fetching a state.
        stall_s: Least time after which a reduction is given up.
        stall_factor: Multiple of its usual length after which a step is given up, where that is more.
        beat_s: Between heartbeats to the lighthouse.
        silent_s: A lighthouse that does not answer them for this long is gone.
    """

    quorum_s: float = 60.0
    connect_s: float = 3.0
    heal_s: float = 120.0
    stall_s: float = 5.0
    stall_factor: float = 5.0
    beat_s: float = 0.5
    silent_s: float = HEARTBEAT_MS / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Addresses and files of a worker.

    Attributes:
        run: Name of the run; workers of another run are refused.
        instance: Name of the instance that it runs on; empty: it is alone on one of its own.
        mates: Workers of that instance, this one included: they join and leave together.
        host: This machine's address, as peers reach it.
        lighthouse: `HOST:PORT`; None trains alone.
        ledger: `HOST:PORT`.
        checkpoints: Folder; None writes none.
        durable: True if that folder survives spot interruptions, so that other workers may rely on it.
        hash_every: Steps between digests of the whole state in the records; 0 takes none.
        gpu: Number of the GPU, where there is one.
    """

    run: str = RUN_ALONE
    worker: str = "worker"
    instance: str = ""
    mates: int = 1
    host: str = "127.0.0.1"
    lighthouse: str | None = None
    ledger: str | None = None
    records: Path | None = None
    checkpoints: Path | None = None
    checkpoint_s: float = 60.0
    durable: bool = False
    control: Path | None = None
    hash_every: int = 0
    gpu: int = 0
    timing: Timing = field(default_factory=Timing)

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self), default=str)}


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; unknown keys are ignored."""
    stored = json.loads(environment.get(VARIABLE, "{}"))
    values = {name: stored[name] for name in Settings.__dataclass_fields__ if name in stored}
    for name in ("records", "checkpoints", "control"):
        if values.get(name) is not None:
            values[name] = Path(values[name])
    if "timing" in values:
        values["timing"] = Timing(**values["timing"])
    return Settings(**values)


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


def parse_control(text: str) -> Control:
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
            control = parse_control(path.read_text())
        except (OSError, UnicodeDecodeError, ControlError) as error:
            self.fault = f"{path}: {error}"
            return
        self.fault = None
        if control.generation >= self._control.generation:
            self._control = control
