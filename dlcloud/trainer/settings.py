"""Settings that an agent passes to its workers in one variable; without it a script trains alone."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
        worker: Name of this worker.
        instance: Name of the instance that it runs on; empty: it is alone on one of its own.
        mates: Workers of that instance, this one included: they join and leave together.
        host: This machine's address, as peers reach it.
        lighthouse: `HOST:PORT`; None trains alone.
        ledger: `HOST:PORT`.
        records: File that records are appended to.
        checkpoints: Folder; None writes none.
        checkpoint_s: Seconds between checkpoints.
        durable: True if that folder survives spot interruptions, so that other workers may rely on it.
        control: The controller's file.
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
