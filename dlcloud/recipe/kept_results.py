"""Which of the files that a run wrote are downloaded: `keep.files`, or by default all of them up to a size.

Decided from the list of files that `templates/job.py` makes on the instance, before anything is transferred.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from dlcloud.model.globs import matches

GIB = 1 << 30
DEFAULT_BYTES = 2 * GIB
"""Of all files of a run that are downloaded without a `keep.files`."""
CACHES = (
    ".cache", ".git", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv",
    "__pycache__", "node_modules", "venv",
)  # fmt: skip
"""Folders that programs fill with what can be made again: left out by default."""
TRACKERS = ("**/events.out.tfevents.*", "**/wandb/offline-run-*/**")
"""What TensorBoard's writers and W&B's offline mode leave: downloaded whatever the recipe says."""
MOST_FOLDERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that a run wrote: its name below the working folder, its bytes, and another name that it has."""

    name: str
    size: int
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is downloaded of a run.

    Attributes:
        sizes: Bytes by name, sorted by name.
        too_large: Names beyond the limit, with their bytes.
        unmatched: Patterns of the recipe that no file matches.
    """

    sizes: Mapping[str, int]
    too_large: Mapping[str, int]
    unmatched: tuple[str, ...]

    @property
    def largest_folders(self) -> list[tuple[str, int]]:
        """The folders, or files of the top, that hold most of what is too large, with bytes."""
        sizes: Counter[str] = Counter()
        for name, size in self.too_large.items():
            parent = str(PurePosixPath(name).parent)
            sizes[name if parent == "." else f"{parent}/"] += size
        return sizes.most_common(MOST_FOLDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """What a recipe wants to have of the files that its run writes.

    Args:
        patterns: A folder means its content; None: every file, up to `limit`.
        limit: Bytes; of explicit patterns there is none.
    """

    patterns: tuple[str, ...] | None = ()
    limit: int = DEFAULT_BYTES

    @property
    def skipped_folders(self) -> tuple[str, ...]:
        """Names of folders that need not be listed."""
        return CACHES if self.patterns is None else ()

    def select(self, written: Sequence[Written]) -> Selection:
        """Decide what of the files of a run is downloaded."""
        if self.patterns is None:
            return self._select_all(written)
        globs = [*self.patterns, *TRACKERS]
        sizes = {file.name: file.size for file in written if _is_wanted(file.name, globs)}
        unmatched = [
            one for one in self.patterns if not any(_is_wanted(file.name, [one]) for file in written)
        ]
        return Selection(sizes=dict(sorted(sizes.items())), too_large={}, unmatched=tuple(unmatched))

    def _select_all(self, written: Sequence[Written]) -> Selection:
        """Select small files first; another name of a file goes with it, and costs nothing."""
        total = 0
        sizes: dict[str, int] = {}
        too_large: dict[str, int] = {}
        for file in sorted(written, key=lambda file: (bool(file.other), file.size, file.name)):
            fits = file.other in sizes if file.other else total + file.size <= self.limit
            (sizes if fits else too_large)[file.name] = file.size
            total += file.size if fits and not file.other else 0
        return Selection(sizes=dict(sorted(sizes.items())), too_large=too_large, unmatched=())


NOTHING = KeptFiles()
"""Beyond what trackers wrote."""


def _is_wanted(name: str, patterns: Iterable[str]) -> bool:
    """True if a name matches: as a glob, as it is written, or below a folder that does."""
    return any(
        matches(name, [pattern, f"{pattern}/**"]) or f"{name}/".startswith(f"{pattern}/")
        for pattern in map(_plain, patterns)
    )


def _plain(pattern: str) -> str:
    """Return a pattern without what changes nothing: `./out`, `out//a`; `.` is the folder's content."""
    plain = str(PurePosixPath(pattern))
    return "**" if plain == "." else plain


def refuse_hopeless(pattern: str) -> None:
    """Refuse a pattern that no file below the working folder can match.

    Raises:
        ValueError: It is absolute, leads out of the folder, or ends in a slash.
    """
    path = PurePosixPath(pattern)
    if path.is_absolute() or pattern.startswith("~"):
        raise ValueError(
            f"{pattern!r} is not below the working folder; let the program write into its folder"
        )
    if pattern.startswith("$"):
        raise ValueError(f"{pattern!r} names a variable, which no shell replaces here; name the folder")
    if ".." in path.parts:
        raise ValueError(f"{pattern!r} leads out of the working folder, below which all kept files are")
    if not pattern.strip() or pattern.endswith("/"):
        folder = pattern.rstrip("/ ")
        raise ValueError(
            f"{pattern!r} can match no file" + (f"; {folder!r} means the folder's content" if folder else "")
        )
