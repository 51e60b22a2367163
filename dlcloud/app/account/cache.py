"""`dlcloud gc --cache`: what can be made again and takes room in this home, and its removal."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.model.errors import BudgetError, PartialError
from dlcloud.report.table import Format, Report, Section, render

_MIB = 1 << 20
_KINDS = {
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
    say(render(_report(entries), Format(output)))
    removable = [entry for entry in entries if not entry.is_used]
    if dry_run or not removable:
        return
    if not yes and not sys.stdin.isatty():
        raise BudgetError("this removes files for good, and stdin is not a terminal", "pass --yes to confirm")
    if not yes:
        confirm(f"Remove {len(removable)} of them, {_size(sum(e.size_bytes for e in removable))}?")
    left = [entry for entry in removable if not _remove(entry.path)]
    if left:
        names = ", ".join(str(entry.path) for entry in left)
        raise PartialError(f"not removed: {names}", "remove them by hand", result_shown=True)
    say(f"removed {_size(sum(entry.size_bytes for entry in removable))}", err=True)


def list_entries(context: Context) -> list[CacheEntry]:
    """Return what the caches hold, the largest first.

    What instances share is used while a cluster of the local EC2 is up. A cache that is a link belongs to
    others, too, and is left out.
    """
    is_up = any(cluster.cloud == "local" for cluster in context.clusters.active())
    home = context.paths.home
    entries = [
        CacheEntry(
            kind=kind,
            path=path,
            size_bytes=sum(_sizes(path)),
            changed_at=datetime.fromtimestamp(path.lstat().st_mtime, UTC),
            is_used=is_up and pattern.startswith("local/"),
        )
        for kind, pattern in _KINDS.items()
        for path in sorted(home.glob(pattern))
        if not (pattern.startswith("local/") and (home / "local" / "cache").is_symlink())
    ]
    return sorted(entries, key=lambda entry: -entry.size_bytes)


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


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True


def _report(entries: Sequence[CacheEntry]) -> Report:
    total = _size(sum(entry.size_bytes for entry in entries))
    notes = [f"{total} in all; each is made again when it is needed"]
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
                        _size(entry.size_bytes),
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


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
