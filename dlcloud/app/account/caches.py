"""What can be made again and takes room in a home, and its removal: when asked, or beyond a size."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.model.errors import BudgetError, PartialError
from dlcloud.model.events import Info
from dlcloud.report.table import Format, Report, Section, render

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


def run(context: Context, *, dry_run: bool, yes: bool, output: str) -> None:
    """Show what the caches of this home take and, unless `dry_run`, remove what no cluster uses.

    Raises:
        BudgetError: Nothing can be asked, and `yes` is not set.
        PartialError: Something could not be removed.
    """
    entries = list_entries(context)
    say(render(_caches_report(entries), Format(output)))
    removable = [entry for entry in entries if not entry.is_used]
    if dry_run or not removable:
        return
    if not yes and not sys.stdin.isatty():
        raise BudgetError("this removes files for good, and stdin is not a terminal", "pass --yes to confirm")
    if not yes:
        confirm(f"Remove {len(removable)} of them, {size_text(sum(e.size_bytes for e in removable))}?")
    left = [entry for entry in removable if not remove_cache(entry.path)]
    if left:
        names = ", ".join(str(entry.path) for entry in left)
        raise PartialError(f"not removed: {names}", "remove them by hand", result_shown=True)
    say(f"removed {size_text(sum(entry.size_bytes for entry in removable))}", err=True)


def _caches_report(entries: Sequence[CacheEntry]) -> Report:
    total = size_text(sum(entry.size_bytes for entry in entries))
    notes = [f"{total} in all; each is made again when it is needed"]
    notes.append(
        f"beyond {size_text(MOST_BYTES)} what was not used for longest goes by itself, at an up or bench"
    )
    if any(entry.is_used for entry in entries):
        notes.append("used: a cluster of the local EC2 is up, whose instances share it")
    return Report(
        command="gc",
        records=[
            {
                "what": entry.kind,
                "path": str(entry.path),
                "bytes": entry.size_bytes,
                "changed_at": entry.changed_at.isoformat(),
                "used": entry.is_used,
            }
            for entry in entries
        ],
        sections=[
            Section(
                heading="",
                titles=("what", "name", "size", "changed", "used"),
                rows=[
                    (
                        entry.kind,
                        entry.path.name,
                        size_text(entry.size_bytes),
                        f"{entry.changed_at:%Y-%m-%d}",
                        "yes" if entry.is_used else "",
                    )
                    for entry in entries
                ],
                notes=notes,
                numeric=frozenset({2}),
            )
        ]
        if entries
        else [],
        empty="the caches are empty",
    )


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
        mark.touch(mode=0o600)
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
