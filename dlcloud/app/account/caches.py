"""What can be made again and takes room in a home, and its removal: when asked, or beyond a size."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.model.events import Info

MOST_BYTES = 10 << 30
"""Beyond this the caches that instances share shrink by themselves."""
LOOK_EVERY = timedelta(days=1)
"""Between two looks at the sizes: a look reads the name of every file, 0.5 s for 4 GiB."""
MIB = 1 << 20
MARK = "looked-at"
SHARED = "local/"
KINDS = {
    "environment": "local/cache/dlcloud/environments/*",
    "models": "local/cache/dlcloud/models",
    "data of Hugging Face": "local/cache/huggingface",
    "data of PyTorch": "local/cache/torch",
    "container image": "local/cache/dlcloud-images/*",
    "packages of pip": "local/cache/pip",
    "packages of uv": "local/cache/uv",
    "catalogs and prices": "cache/*",
}
"""What instances of the local EC2 share as `~/.cache`, and what commands keep, below the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A folder or file that can be made again: its size, and the time of its last change."""

    kind: str
    path: Path
    size_bytes: int
    changed_at: datetime
    is_used: bool


def list_entries(context: Context) -> list[CacheEntry]:
    """Return what the caches hold, the largest first.

    What instances share is used while a cluster of the local EC2 is up. A cache that is a link belongs to
    others, too, and is left out.
    """
    is_up = _is_shared_now(context)
    home = context.paths.home
    entries = [
        CacheEntry(
            kind=kind,
            path=path,
            size_bytes=sum(_sizes(path)),
            changed_at=_changed_at(path),
            is_used=is_up and pattern.startswith(SHARED),
        )
        for kind, pattern in KINDS.items()
        for path in sorted(home.glob(pattern))
        if not (pattern.startswith(SHARED) and (home / "local" / "cache").is_symlink())
    ]
    return sorted(entries, key=lambda entry: -entry.size_bytes)


def trim_caches(context: Context) -> None:
    """Remove what was not used for longest, until the caches that instances share are below MOST_BYTES.

    Nothing happens while a cluster of the local EC2 is up, whose instances share them, nor twice a day.
    """
    folder = context.paths.home / "local" / "cache"
    mark, now = folder / MARK, context.clock.now()
    with suppress(OSError):
        if mark.exists() and now < datetime.fromtimestamp(mark.stat().st_mtime, UTC) + LOOK_EVERY:
            return
        if folder.is_symlink() or not folder.is_dir() or _is_shared_now(context):
            return
        mark.touch()
        entries = [entry for entry in list_entries(context) if entry.path.is_relative_to(folder)]
        removed = [entry for entry in _oldest_beyond(entries, MOST_BYTES) if remove_cache(entry.path)]
        if removed:
            size, names = sum(entry.size_bytes for entry in removed), ", ".join(e.kind for e in removed)
            message = f"removed {size_text(size)} of caches beyond {size_text(MOST_BYTES)}: {names}"
            context.emit(Info(message=f"{message}; each is made again when it is needed"))


def _is_shared_now(context: Context) -> bool:
    return any(cluster.cloud == "local" for cluster in context.clusters.active())


def _oldest_beyond(entries: Sequence[CacheEntry], most_bytes: int) -> Iterator[CacheEntry]:
    """Yield unused entries, those unchanged for longest first, until the rest has no more bytes."""
    total = sum(entry.size_bytes for entry in entries)
    for entry in sorted(entries, key=lambda entry: entry.changed_at):
        if total <= most_bytes:
            return
        if not entry.is_used:
            total -= entry.size_bytes
            yield entry


def size_text(size_bytes: int) -> str:
    """Return a size in MiB."""
    return f"{size_bytes / MIB:,.0f} MiB"


def _changed_at(path: Path) -> datetime:
    """Return when an entry was last changed; of an environment, when it was last built or used."""
    files = [path, *(file for file in (path / "complete",) if file.exists())]
    return datetime.fromtimestamp(max(file.lstat().st_mtime for file in files), UTC)


def _sizes(path: Path) -> Iterator[int]:
    """Yield the bytes that each file takes on the disk, without following links."""
    yield path.lstat().st_blocks * 512
    if path.is_dir() and not path.is_symlink():
        for folder, _, names in os.walk(path):
            for name in names:
                try:
                    yield Path(folder, name).lstat().st_blocks * 512
                except FileNotFoundError:
                    continue


def remove_cache(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True
