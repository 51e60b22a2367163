"""Which files of a local folder travel to an instance, decided before anything is sent."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dlcloud.core.errors import RecipeError

EXCLUDED = frozenset({"__pycache__", ".git"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, folder or link, and its name relative to the target folder."""

    path: Path
    name: str


def entries(source: Path, *, only: Callable[[Path], bool] | None = None) -> list[Entry]:
    """List what is copied from `source`: the file itself, or the content of the folder.

    Sockets, pipes and devices stay, as do `__pycache__` and `.git`.

    Args:
        source: A file or a folder.
        only: Asked for every file and link with its path relative to `source`; False leaves it out.

    Raises:
        RecipeError: There is no `source`, it cannot be read, or a link in it leads out of it.
    """
    if source.is_file():
        return [Entry(path=source.resolve(), name=source.name)]
    if not source.is_dir():
        raise RecipeError(f"there is no file or folder {source} to send")
    return [entry for entry in _walk(source) if only is None or entry.path.is_dir() or only(Path(entry.name))]


def _walk(source: Path) -> Iterator[Entry]:
    root = source.resolve()
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if name not in EXCLUDED)
        for name in [*folders, *sorted(files)]:
            path = Path(folder) / name
            if path.is_symlink():
                _stays_inside(path, root)
            elif not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISDIR(mode):
                continue
            if name not in EXCLUDED:
                yield Entry(path=path, name=str(path.relative_to(root)))


def _stays_inside(link: Path, root: Path) -> None:
    """Refuse a link that would mean something else, or something outside, on the instance."""
    leads_to = link.readlink()
    as_written = os.path.normpath(link.parent / leads_to)
    inside = all(Path(end).is_relative_to(root) for end in (as_written, os.path.realpath(link)))
    if leads_to.is_absolute() or not inside:
        raise RecipeError(
            f"the link {link} leads out of {root}, to {leads_to}; nothing was sent",
            hint="replace it by what it leads to, or leave it out",
        )


def _unreadable(e: OSError) -> None:
    raise RecipeError(f"cannot read {e.filename} to send it: {e.strerror}") from e
