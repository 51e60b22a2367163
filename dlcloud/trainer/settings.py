"""What an agent tells its workers, in one variable of their environment; without it a script trains alone."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .quorum_timing import Timing

VARIABLE = "DLCLOUD_TRAINER"
RUN_ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker finds the others and where it keeps things.

    Attributes:
        run: Name of the run; workers of another are refused.
        worker: Name of this worker.
        host: This machine's address, as peers reach it.
        lighthouse: `http://HOST:PORT`; None trains alone.
        ledger: `HOST:PORT`.
        records: File that records are appended to.
        checkpoints: Folder; None keeps none.
        checkpoint_s: Seconds between checkpoints.
        durable: Whether that folder outlives spot interruptions, so that others may count on it.
        control: File in which the controller says what it wants.
        hash_every: Steps between digests of the whole state in the records; 0 takes none.
        gpu: Number of the GPU, where there is one.
    """

    run: str = RUN_ALONE
    worker: str = "worker"
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
        """Return what a worker's environment needs."""
        return {VARIABLE: json.dumps(asdict(self), default=str)}


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return what the agent told; keys that are not known are ignored."""
    given = json.loads(environment.get(VARIABLE, "{}"))
    known = {name: given[name] for name in Settings.__dataclass_fields__ if name in given}
    for name in ("records", "checkpoints", "control"):
        if known.get(name) is not None:
            known[name] = Path(known[name])
    if "timing" in known:
        known["timing"] = Timing(**known["timing"])
    return Settings(**known)
