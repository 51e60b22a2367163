"""Fetch files from an instance, which may be hostile: of one tar stream, only what was requested is written.

Regular files with requested names are written, each once, below the target, and no more than the disk takes.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Literal, Self

from dlcloud.model.errors import RemoteCommandError, StoreError
from dlcloud.ssh.copy import Shell, not_an_option
from dlcloud.ssh.listing import matches
from dlcloud.ssh.process import RemoteProcess
from dlcloud.system.files import replace_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

MOST_FILES = 100_000
KEPT_FREE = 1 << 26
"""Bytes that stay free on the disk, so that the store can still be written."""

_BLOCK = 1 << 16
_HEADERS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
_SPECIAL = re.compile(r"[*?\[\n]|(^|/)\.\.?(/|$)|^/|//|^$")
"""In a pattern that is no plain name of a file."""
_LONGEST_HEADER = 1 << 20
_PADDING = 1 << 20
_LONGEST_NAME = 4096  # Source: Linux, PATH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How files are fetched.

    Args:
        compress: By gzip.
        written_after: Only files whose content or status changed after this file was written, whose path is
            relative to the folder; all, if it is empty or does not exist.
    """

    compress: bool
    written_after: str = ""

    @property
    def condition(self) -> str:
        """The condition for `find`. A change of status cannot be set back, as `cp -p` sets a time back."""
        name = shlex.quote(self.written_after)
        return f"$(! [ -e {name} ] || echo -cnewer {name})" if self.written_after else ""

    @property
    def is_older(self) -> str:
        """The condition for a shell that the file `$name` is none of them."""
        newer = f'"$(find "$name" -prune {self.condition})"'
        return f"[ -z {newer} ]" if self.written_after else "false"


def fetch_files(
    shell: Shell, folder: str, patterns: Iterable[str], target: Path, packing: Packing
) -> list[Path]:
    """Fetch the regular files below `folder` whose relative names match; see `model.remote.Connection`."""
    patterns = [pattern.removeprefix("./") for pattern in patterns]
    are_names = not any(_SPECIAL.search(pattern) for pattern in patterns)
    names = sorted(set(patterns)) if are_names else _list_files(shell, folder, patterns, packing)
    if not names:
        return []
    pack = f"tar -c{'z' if packing.compress else ''}f - --null -T -"
    # Where the names are known, the instance is not asked first which of them exist.
    test = f'[ ! -f "$name" ] || [ -L "$name" ] || {packing.is_older}'
    existing = f"while IFS= read -r name; do {test} || printf '%s\\0' \"$name\"; done | "
    command = f"cd {shlex.quote(not_an_option(folder))} && {existing if are_names else ''}{pack}"
    end = b"\n" if are_names else b"\0"
    listing = b"".join(f"./{name}".encode(errors="surrogateescape") + end for name in names)
    with shell.start(command, stdin=listing) as process:
        paths = _unpack(shell, process, set(names), target, "r|gz" if packing.compress else "r|")
        _skip_padding(shell, process)
        status = process.wait()
        if status and len(paths) < len(names):  # status 1 may also mean that a log grew meanwhile
            raise shell.command_error(command, status, bytes(process.stderr))
    return [paths[name] for name in names if name in paths]


def _list_files(shell: Shell, folder: str, patterns: list[str], packing: Packing) -> list[str]:
    """List the regular files below the folder on the instance; match them here, by one rule everywhere."""
    command = f"cd {shlex.quote(not_an_option(folder))} && find . -type f {packing.condition} -print0"
    lines = shell.check(command).split(b"\0")
    names = [line.decode(errors="surrogateescape").removeprefix("./") for line in lines if line]
    if stray := next((name for name in names if not _is_inside(name)), None):
        raise _unrequested_error(shell, stray)
    matching = sorted({name for name in names if matches(name, patterns)})
    if len(matching) > MOST_FILES:
        message = f"{shell.endpoint.instance_id}: {len(matching)} files match in {folder}"
        raise RemoteCommandError(f"{message}; at most {MOST_FILES} are fetched", "keep them as one archive")
    return matching


def _skip_padding(shell: Shell, process: RemoteProcess) -> None:
    """Read what follows the end of an archive, which is little."""
    size = 0
    for piece in process.read_stdout():
        size += len(piece)
        if size > _PADDING:
            raise RemoteCommandError(f"{shell.endpoint.instance_id}: sent more than the requested files")


def _unpack(
    shell: Shell, process: RemoteProcess, names: set[str], target: Path, mode: Literal["r|", "r|gz"]
) -> dict[str, Path]:
    """Write the requested regular files below `target`, and refuse anything else."""
    paths: dict[str, Path] = {}
    try:
        target.mkdir(parents=True, exist_ok=True)
        stream = io.BufferedReader(_Source(process.read_stdout()), _BLOCK)
        with tarfile.open(fileobj=stream, mode=mode, tarinfo=_Member) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name not in names or name in paths or not _is_plain(member):
                    raise _unrequested_error(shell, member.name)
                member.name = name
                paths[name] = _write_one(archive, member, target, paths, shell)
    except (tarfile.TarError, zlib.error, ValueError, ArithmeticError, EOFError) as e:
        if process.is_drained and (status := process.wait()):
            raise shell.command_error("tar", status, bytes(process.stderr)) from e
        raise RemoteCommandError(f"{shell.endpoint.instance_id}: its answer is not a tar archive: {e}") from e
    except OSError as e:
        raise StoreError(f"cannot write {e.filename or target}: {e.strerror or e}") from e
    return paths


def _write_one(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, paths: dict[str, Path], shell: Shell
) -> Path:
    """Write one member, whole or not at all; a hard link, which tar sends as a link, becomes a copy."""
    path = target / member.name
    if not path.resolve().is_relative_to(target.resolve()):
        raise _unrequested_error(shell, member.name)
    if member.isreg():
        content: IO[bytes] | None = archive.extractfile(member)
    else:
        first = paths.get(member.linkname.removeprefix("./"))
        content = None if first is None else first.open("rb")
    if content is None:
        raise _unrequested_error(shell, member.name)
    size = member.size if member.isreg() else os.fstat(content.fileno()).st_size
    _require_space(target, member.name, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, replace_file(path, mode=_safe_mode(member.mode)) as draft:
        with draft.open("wb") as file:
            shutil.copyfileobj(content, file, _BLOCK)
        with contextlib.suppress(OverflowError, ValueError, TypeError, OSError):  # any time can be stated
            os.utime(draft, (member.mtime or 0, member.mtime or 0))
    return path


def _safe_mode(mode: int) -> int:
    """Return the mode of a file that its owner can read and write, and no other user can write.

    Source: CPython's tarfile, `data_filter`, which Python 3.11.2 (Debian 12) lacks.
    """
    kept = mode & 0o755
    return (kept if kept & 0o100 else kept & 0o644) | 0o600


def _require_space(target: Path, name: str, size: int) -> None:
    """Refuse a file that would fill the disk; its size is known before its content."""
    free = shutil.disk_usage(target).free
    if size > free - KEPT_FREE:
        message = f"{name!r} has {size} bytes, and {free} are free at {target}; it is not fetched"
        raise StoreError(message, "free space there, or keep less of the run (keep.files)")


def _is_plain(member: tarfile.TarInfo) -> bool:
    """True for a file or a hard link as tar makes them; a sparse file states any size with few bytes."""
    return (member.isreg() or member.islnk()) and not member.issparse() and member.size >= 0


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return len(name) <= _LONGEST_NAME and not path.is_absolute() and ".." not in path.parts


def _unrequested_error(shell: Shell, name: str) -> RemoteCommandError:
    return RemoteCommandError(
        f"{shell.endpoint.instance_id}: sent {name!r}, which was not requested; not written"
    )


class _Member(tarfile.TarInfo):
    """A member whose header is short: tarfile reads one of any stated length into memory."""

    @classmethod
    def frombuf(cls, buf: "ReadableBuffer", encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        if member.type in _HEADERS and not 0 <= member.size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


class _Source(io.RawIOBase):
    """A file to read from that is a command's standard output."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        if not self._left:
            self._left = next(self._pieces, b"")
        taken = min(len(view), len(self._left))
        view[:taken], self._left = self._left[:taken], self._left[taken:]
        return taken
