"""The files of a local folder that are sent to an instance, and globs that select files to fetch."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.model.sent_file import SentFile

EXCLUDED = frozenset({"__pycache__", ".git"})


def list_entries(source: Path, *, only: Callable[[Path], bool] | None = None) -> list[SentFile]:
    """List the file `source` itself, or the content of the folder.

    Sockets, pipes and devices are left out, as are `__pycache__` and `.git`.

    Args:
        source: A file or a folder.
        only: Called for every file and link with its path relative to `source`; False leaves it out.

    Raises:
        RecipeError: There is no `source`, it cannot be read, or a link in it leads out of it.
    """
    if source.is_file():
        return [SentFile(path=source.resolve(), name=source.name)]
    if not source.is_dir():
        raise RecipeError(f"cannot send {source}: no such file or folder")
    return [entry for entry in _walk(source) if only is None or entry.path.is_dir() or only(Path(entry.name))]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if a relative name matches any glob: `*` within one folder level, `**` over any number of them."""
    parts = name.split("/")
    return any(_parts_match(parts, pattern.removeprefix("./").split("/")) for pattern in patterns)


def _parts_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_parts_match(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _parts_match(parts[1:], pattern[1:])


def _walk(source: Path) -> Iterator[SentFile]:
    root = source.resolve()
    for folder, folders, files in os.walk(root, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if name not in EXCLUDED)
        for name in [*folders, *sorted(files)]:
            path = Path(folder) / name
            if path.is_symlink():
                check_link(path, root)
            elif not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISDIR(mode):
                continue
            if name not in EXCLUDED:
                yield SentFile(path=path, name=str(path.relative_to(root)))


def check_link(link: Path, root: Path) -> None:
    """Refuse a link that would lead elsewhere, or outside, on the instance.

    Raises:
        RecipeError: It would.
    """
    target = link.readlink()
    as_written = os.path.normpath(link.parent / target)
    inside = all(Path(end).is_relative_to(root) for end in (as_written, os.path.realpath(link)))
    if target.is_absolute() or not inside:
        raise RecipeError(
            f"the link {link} leads out of {root}, to {target}; nothing was sent",
            hint="replace the link by a copy of its target, or leave it out",
        )


def _raise_unreadable(e: OSError) -> None:
    raise RecipeError(f"cannot read {e.filename} to send it: {e.strerror}") from e
