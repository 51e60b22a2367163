"""What .gitignore and .dlcloudignore leave out of a folder, as git reads them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.sent_files import IGNORE_FILE

GIT_TIMEOUT_S = 20.0
ALWAYS = frozenset({"__pycache__", ".git"})
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""What every virtual environment, or every one of Conda, has at its top."""


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
