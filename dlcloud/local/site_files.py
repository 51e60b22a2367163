"""The files of a site: where they are, its access key, and the state of its daemon. Standard library only."""

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from dlcloud.system.files import FileLock, write_file

SCHEMA = 1
_DIGITS = 16


class Level(StrEnum):
    """How far instances are kept from the machine."""

    NAMESPACES = "namespaces"
    USER = "user"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """The access key of a local EC2's owner, who may do anything there; or another caller's."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePaths:
    """The files of a site.

    Args:
        folder: Of the site.
        shared: Where instances and cache are if the instances' user cannot reach the site's folder.
    """

    folder: Path
    shared: Path | None = None

    @property
    def state(self) -> Path:
        """Return the file with the daemon's address and control token; only its owner can read it."""
        return self.folder / "endpoint.json"

    @property
    def access_key(self) -> Path:
        """Return the file with the owner's access key; only its owner can read it."""
        return self.folder / "access-key.json"

    @property
    def start_lock(self) -> Path:
        """Return the file locked while a command looks for, starts or stops the daemon."""
        return self.folder / "start.lock"

    @property
    def users_lock(self) -> Path:
        """Return the file that every command which uses the daemon locks, shared with the others."""
        return self.folder / "users.lock"

    @property
    def life_lock(self) -> Path:
        """Return the file that a daemon keeps locked while it lives; the kernel unlocks it at any death."""
        return self.folder / "daemon.lock"

    @property
    def log(self) -> Path:
        return self.folder / "daemon.log"

    @property
    def startup_log(self) -> Path:
        """Return the output of the interpreter while the daemon started."""
        return self.folder / "startup.log"

    @property
    def instances(self) -> Path:
        """Return the folder with one folder per instance."""
        if self.shared is None:
            return self.folder / "instances"
        return self.shared / sha256(os.fsencode(self.folder)).hexdigest()[:_DIGITS]

    @property
    def cache(self) -> Path:
        """Return the folder that instances share as `~/.cache`; it outlives the daemon."""
        return (self.shared or self.folder) / "cache"

    @property
    def image(self) -> Path:
        """Return the folder with the parts of root file systems that all instances share."""
        return self.folder / "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """The content of a running daemon's state file."""

    pid: int
    url: str
    token: str
    started_at: str
    schema: int = SCHEMA


def load_access_key(paths: SitePaths) -> AccessKey:
    """Return the site's access key, a new one if it has none yet; all processes get the same."""
    path = paths.access_key
    if not path.exists():
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                key_id = "AKIA" + base64.b32encode(secrets.token_bytes(10)).decode()
                content = {"key_id": key_id, "secret": secrets.token_urlsafe(30), "schema": SCHEMA}
                write_file(path, json.dumps(content), durable=True)
    content = json.loads(path.read_text(encoding="utf-8"))
    return AccessKey(key_id=content["key_id"], secret=content["secret"])


def write_state(path: Path, state: SiteState) -> None:
    """Write the state whole or not at all, readable by its owner only: it carries the control token."""
    write_file(path, json.dumps(asdict(state)), durable=True)


def read_state(path: Path) -> SiteState | None:
    """Read the state; None if there is none, or if it is broken or of another schema."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        state = SiteState(**{name: content[name] for name in ("pid", "url", "token", "started_at", "schema")})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return state if state.schema == SCHEMA else None
