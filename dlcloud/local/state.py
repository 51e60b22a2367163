"""The files by which separate commands find one daemon: its state, its lock, its log."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePaths:
    """Where things lie in a site's folder."""

    folder: Path

    @property
    def state(self) -> Path:
        """Return the file that says where the daemon answers; its owner alone can read it."""
        return self.folder / "endpoint.json"

    @property
    def start_lock(self) -> Path:
        """Return the file locked while a command looks for, starts or stops the daemon."""
        return self.folder / "start.lock"

    @property
    def life_lock(self) -> Path:
        """Return the file that a daemon keeps locked while it lives; the kernel unlocks it at any death."""
        return self.folder / "daemon.lock"

    @property
    def log(self) -> Path:
        """Return the daemon's log."""
        return self.folder / "daemon.log"

    @property
    def startup_log(self) -> Path:
        """Return what the interpreter itself wrote while the daemon started."""
        return self.folder / "startup.log"

    @property
    def instances(self) -> Path:
        """Return the folder with one folder per instance."""
        return self.folder / "instances"

    @property
    def cache(self) -> Path:
        """Return what the instances share as `~/.cache`; it outlives the daemon."""
        return self.folder / "cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """What a running daemon tells the commands that look for it."""

    pid: int
    url: str
    token: str
    started_at: str
    schema: int = SCHEMA


def write_state(path: Path, state: SiteState) -> None:
    """Write the state whole or not at all, readable by its owner only: it carries the control token."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(state), stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def read_state(path: Path) -> SiteState | None:
    """Read the state; None where there is none, or where it is of another schema or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {name: content[name] for name in ("pid", "url", "token", "started_at", "schema")}
        state = SiteState(**known)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return state if state.schema == SCHEMA else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; waits for whoever holds it."""
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Tell whether a living process holds the lock on a file."""
    try:
        with path.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
