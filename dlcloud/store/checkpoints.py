"""The checkpoints of programs that the dlcloud home keeps, as `templates/checkpoints.py` publishes them.

A folder has `objects/DIGEST`, the contents, and `state-NUMBER.json`, written last: a state whose copy was cut
off has no such file. The newest state and the one before it are kept.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.untrusted import number_or_none, parse_json
from dlcloud.store.home import Paths
from dlcloud.system.files import write_file

KEPT = 2
MOST_FILES = 100_000
LARGEST = 1 << 50
CHUNK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"state-(\d{1,15})\.json")

Fetch = Callable[[Mapping[str, int], Path], None]
"""Downloads contents, named by their digests and with their sizes, into a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All checkpoints of a program at one time.

    Attributes:
        number: States of a program are numbered, also across its runs.
        made_at: On the instance.
        ended: True if the program had been asked to stop, and may have been cut off.
        run_s: How long the run had worked that made it; without the runs before.
        sizes: Bytes of the contents, by digest.
        size: Bytes of all of them.
        files: How many there are.
        text: The manifest as it came.
    """

    number: int
    made_at: datetime
    ended: bool
    run_s: float
    sizes: Mapping[str, int]
    size: int
    files: int
    text: str


def read_state(text: str, origin: str) -> State:
    """Return the state that a manifest describes.

    Raises:
        RemoteCommandError: It is none, or names what a manifest cannot; `origin` says where it came from.
    """
    try:
        content: Any = parse_json(text)
        files = content["files"]
        sizes = {entry["sha256"]: entry["size"] for entry in files.values()}
        state = State(
            number=int(content["number"]),
            made_at=datetime.fromisoformat(content["made_at"]).astimezone(UTC),
            ended=bool(content["ended"]),
            run_s=number_or_none(content.get("run_s")) or 0.0,
            sizes=sizes,
            size=sum(sizes.values()),
            files=len(files),
            text=text,
        )
        is_sound = all(
            _DIGEST.fullmatch(digest) and type(size) is int and 0 <= size <= LARGEST
            for digest, size in sizes.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        is_sound = False
    if not is_sound or state.files > MOST_FILES or not 0 < state.number <= LARGEST:
        raise RemoteCommandError(f"{origin}: unexpected manifest of checkpoints: {text[:200]!r}")
    return state


def read_summary(summary: Mapping[str, Any], origin: str) -> State:
    """Return the state that an instance says it has fetched; raises as `read_state`."""
    try:
        return State(
            number=int(summary["number"]),
            made_at=datetime.fromisoformat(summary["made_at"]).astimezone(UTC),
            ended=bool(summary["ended"]),
            run_s=0.0,
            sizes={},
            size=int(summary["bytes"]),
            files=int(summary["files"]),
            text="",
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RemoteCommandError(f"{origin}: unexpected checkpoints: {str(summary)[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class HomeCheckpoints:
    """The states of one program below a folder of the home.

    `refused` are the numbers of those from which it could not start: they stay until there is a newer one.
    """

    folder: Path
    paths: Paths
    refused: Collection[int] = ()

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def newest(self) -> State | None:
        """Return the newest state of which every content is there, whole in size, if it is not refused."""
        return next((state for state in self._states() if state.number not in self.refused), None)

    def missing(self, state: State) -> dict[str, int]:
        """Return the contents that are still to be copied, with their sizes."""
        return {
            digest: size
            for digest, size in state.sizes.items()
            if not (self.objects / digest).is_file() or (self.objects / digest).stat().st_size != size
        }

    def add(self, state: State, fetch: Fetch) -> int:
        """Copy what is missing of a state, publish it, and remove all but the newest ones.

        Returns:
            The bytes that were copied.

        Raises:
            RemoteCommandError: A content is not what its digest says; nothing is published.
        """
        self.paths.make_folder(self.objects)
        missing = self.missing(state)
        arriving = self.paths.make_folder(self.folder / "arriving")
        for left in arriving.iterdir():  # by a command that was killed
            left.unlink()
        fetch(missing, arriving)
        for digest in missing:
            path = arriving / digest
            if not path.is_file() or digest_of(path) != digest:
                path.unlink(missing_ok=True)
                raise RemoteCommandError(f"a file of checkpoint {state.number} changed while it was copied")
            path.replace(self.objects / digest)
        write_file(self.folder / f"state-{state.number}.json", state.text, durable=True)
        for number in self.refused:
            (self.folder / f"state-{number}.json").unlink(missing_ok=True)
        self._remove_old()
        return sum(missing.values())

    def clear(self) -> None:
        """Remove all states: the program has finished."""
        for path in self.folder.glob("state-*.json"):
            path.unlink()
        self._remove_old()

    def _states(self) -> list[State]:
        """Return the states that are whole, the newest first."""
        states = []
        for path in self.folder.glob("state-*.json"):
            if _NAME.fullmatch(path.name):
                state = read_state(path.read_text("utf-8"), str(path))
                states += [] if self.missing(state) else [state]
        return sorted(states, key=lambda state: -state.number)

    def _remove_old(self) -> None:
        states = self._states()
        for state in states[KEPT:]:
            (self.folder / f"state-{state.number}.json").unlink()
        used = {digest for state in states[:KEPT] for digest in state.sizes}
        for path in self.objects.iterdir() if self.objects.is_dir() else ():
            if path.name not in used:
                path.unlink()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()
