"""List the user's files that are sent to instances: without what ignore files and git leave out."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.model.sent_file import SentFile
from dlcloud.recipe.sent_files import MOST_FILES, FileSet
from dlcloud.ssh.ignore import ALWAYS, IgnoreRules, is_environment, tracked_although_ignored
from dlcloud.ssh.tree import check_link

MOST_LISTED = 4 * MOST_FILES
"""The listing is given up at so many files: a message about more would come late."""


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


def _refuse_place(root: Path) -> None:
    if Path.home().is_relative_to(root) or root.parent == root:
        whole = "the whole file system" if root.parent == root else "a home folder, with all that is in it"
        raise RecipeError(
            f"workload.files: {root} is {whole}; nothing was sent",
            "put the program into a folder of its own, and name that",
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
            if item.name in ALWAYS:
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
