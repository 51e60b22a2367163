"""Which local files are sent to an instance.

`list_files` lists the user's files without what .gitignore, .dlcloudignore and git leave out; `list_entries`
lists all of a folder.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from dlcloud.model.errors import RecipeError
from dlcloud.model.remote import SentFile
from dlcloud.recipe.sent_files import IGNORE_FILE, MOST_FILES, FileSet

GIT_TIMEOUT_S = 20.0
EXCLUDED = frozenset({"__pycache__", ".git"})
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""What every virtual environment, or every one of Conda, has at its top."""

MOST_LISTED = 4 * MOST_FILES
"""The listing is given up at this many files: a message about more would come late."""


def list_files(source: Path) -> FileSet:
    """List a folder, or the one file.

    `.git`, `__pycache__`, virtual environments, sockets, pipes and devices stay here, as does what .gitignore
    and .dlcloudignore leave out. The latter decides first, and of each the deepest file; what git tracks
    although .gitignore names it is sent, as git would.

    Raises:
        RecipeError: There is no `source`, it is no place for a program, it cannot be read, or a link in it
            leads out of it.
    """
    if source.is_file():
        return FileSet(source=source, entries=(_entry(source.resolve(), source.name),))
    if not source.is_dir():
        raise RecipeError(f"cannot send {source}: no such file or folder")
    root = source.resolve()
    _refuse_place(root)
    listing = _Listing(root=root)
    listing.walk()
    return FileSet(
        source=source,
        entries=tuple(listing.entries),
        left_out=tuple(sorted(listing.left_out)),
        is_whole=len(listing.entries) < MOST_LISTED,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one ignore file, for what lies below its folder."""

    folder: str
    spec: GitIgnoreSpec

    def decision(self, path: str, *, is_folder: bool) -> bool | None:
        """True if the rules leave a path out, False if they bring it back, None if they do not say."""
        name = os.path.relpath(path, self.folder).replace(os.sep, "/")
        return self.spec.check_file(f"{name}/" if is_folder else name).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that apply in one folder, those of the deepest file first."""

    own: tuple[Rules, ...] = ()
    git: tuple[Rules, ...] = ()

    @classmethod
    def above(cls, root: Path) -> "IgnoreRules":
        """Return the rules of the folders above `root`: those of its parent, and of its git repository."""
        rules = cls()
        repository = next((folder for folder in root.parents if (folder / ".git").exists()), None)
        inside = (root / ".git").exists() is False and repository is not None
        for folder in reversed(root.parents):
            in_repository = inside and repository is not None and folder.is_relative_to(repository)
            own = _read(folder / IGNORE_FILE) if in_repository or folder == root.parent else ()
            git = _read(folder / ".gitignore") if in_repository else ()
            rules = cls((*own, *rules.own), (*git, *rules.git))
        return rules

    def below(self, folder: Path) -> "IgnoreRules":
        """Return the rules that apply in a folder whose parent these apply in."""
        own, git = _read(folder / IGNORE_FILE), _read(folder / ".gitignore")
        return IgnoreRules((*own, *self.own), (*git, *self.git)) if own or git else self

    def leave_out(self, path: str, *, is_folder: bool, is_tracked: bool = False) -> bool:
        """True if a path is left out; .gitignore does not leave out what git tracks."""
        for rules in self.own if is_tracked else (*self.own, *self.git):
            decision = rules.decision(path, is_folder=is_folder)
            if decision is not None:
                return decision
        return False


def is_environment(folder: str) -> bool:
    """True for a virtual environment, which works only where it was made."""
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ENVIRONMENT_MARKS)  # noqa: PTH110, PTH118


def tracked_although_ignored(root: Path) -> Iterator[str]:
    """Yield the paths below `root` that git tracks and .gitignore names; none where there is no git."""
    program = shutil.which("git")
    if program is None:
        return
    command = [program, "-C", str(root), "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=GIT_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):  # no repository, or one that git does not trust
        return
    yield from (str(root / os.fsdecode(name)) for name in done.stdout.split(b"\0") if name)


def _read(file: Path) -> tuple[Rules, ...]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        return (Rules(folder=str(file.parent), spec=GitIgnoreSpec.from_lines(lines)),)
    except OSError:
        return ()
    except ValueError as error:
        raise RecipeError(f"{file} has a pattern that cannot be read: {error}") from error


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


def _refuse_place(root: Path) -> None:
    if Path.home().is_relative_to(root) or root.parent == root:
        whole = "the whole file system" if root.parent == root else "a home folder, with all that is in it"
        raise RecipeError(
            f"workload.files: {root} is {whole}; nothing was sent",
            "put the program into its own folder, and name that",
        )
    if is_environment(str(root)):
        raise RecipeError(
            f"workload.files: {root} is a virtual environment, which works only where it was made",
            "setup.requirements lists packages; they are installed on the instance",
        )


@dataclass(slots=True, kw_only=True)
class _Listing:
    """One walk through a folder."""

    root: Path
    entries: list[SentFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _tracked: set[str] | None = None

    def walk(self) -> None:
        rules = IgnoreRules.above(self.root).below(self.root)
        folders = [(str(self.root), rules, False)]
        while folders and len(self.entries) < MOST_LISTED:
            folder, rules, is_left_out = folders.pop()
            for path, inner_is_left_out in self._visit(folder, rules, is_left_out=is_left_out):
                folders.append((path, rules.below(Path(path)), inner_is_left_out))

    def _visit(self, folder: str, rules: IgnoreRules, *, is_left_out: bool) -> Iterator[tuple[str, bool]]:
        """Add the content of a folder; yield its folders, and whether only tracked files of them are sent."""
        for item in self._scan(folder):
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name in EXCLUDED:
                continue
            if is_folder and is_environment(item.path):
                self._leave_out(item.path, is_folder=True, is_left_out=is_left_out)
                continue
            out = is_left_out or rules.leave_out(item.path, is_folder=is_folder)
            if out and not self._is_sent_although(item.path, rules, is_folder=is_folder):
                self._leave_out(item.path, is_folder=is_folder, is_left_out=is_left_out)
                continue
            if self._add(item) and is_folder:
                yield item.path, out

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as items:
                return sorted(items, key=lambda item: item.name)
        except OSError as error:
            raise RecipeError(f"cannot read {folder} to send it: {error.strerror}") from error

    def _add(self, item: os.DirEntry[str]) -> bool:
        path, name = Path(item.path), os.path.relpath(item.path, self.root).replace(os.sep, "/")
        if item.is_symlink():
            check_link(path, self.root)
        elif not item.is_file(follow_symlinks=False) and not item.is_dir(follow_symlinks=False):
            return False
        self.entries.append(_entry(path, name))
        return True

    def _leave_out(self, path: str, *, is_folder: bool, is_left_out: bool) -> None:
        if not is_left_out:
            name = os.path.relpath(path, self.root).replace(os.sep, "/")
            self.left_out.append(f"{name}/" if is_folder else name)

    def _is_sent_although(self, path: str, rules: IgnoreRules, *, is_folder: bool) -> bool:
        """True if git tracks a path that .gitignore names, or what is below it."""
        if self._tracked is None:
            files = list(tracked_although_ignored(self.root))
            parents = (str(parent) for file in files for parent in Path(file).parents)
            self._tracked = {*files, *parents}
        return path in self._tracked and not rules.leave_out(path, is_folder=is_folder, is_tracked=True)


def _entry(path: Path, name: str) -> SentFile:
    """Return an entry whose stamp is the file's kind, mode, size and time."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return SentFile(path=path, name=name, stamp=f"l {path.readlink()}")
    mode = f"{stat.S_IMODE(status.st_mode):o}"
    if stat.S_ISDIR(status.st_mode):
        return SentFile(path=path, name=name, stamp=f"d {mode}")
    stamp = f"f {mode} {status.st_size} {status.st_mtime_ns}"
    return SentFile(path=path, name=name, size=status.st_size, stamp=stamp)
