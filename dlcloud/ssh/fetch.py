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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, Self

from dlcloud.model.errors import RemoteCommandError, StoreError
from dlcloud.model.globs import matches
from dlcloud.model.remote import Fetched
from dlcloud.model.untrusted import is_below
from dlcloud.ssh.copy import Shell, not_an_option
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


def fetch_files(
    shell: Shell, folder: str, patterns: Iterable[str], target: Path, *, compress: bool
) -> list[Path]:
    """Fetch the regular files below `folder` whose relative names match; see `model.remote.Connection`."""
    patterns = [pattern.removeprefix("./") for pattern in patterns]
    are_names = not any(_SPECIAL.search(pattern) for pattern in patterns)
    names = sorted(set(patterns)) if are_names else _list_files(shell, folder, patterns)
    if not names:
        return []
    # Where the names are known, the instance is not asked first which of them exist.
    test = '[ ! -f "$name" ] || [ -L "$name" ]'
    existing = f"while IFS= read -r name; do {test} || printf '%s\\0' \"$name\"; done | "
    end = b"\n" if are_names else b"\0"
    listing = b"".join(f"./{name}".encode(errors="surrogateescape") + end for name in names)
    command = f"{existing if are_names else ''}tar -c{'z' if compress else ''}f - --null -T -"
    receiver = _Receiver(shell=shell, names=frozenset(names), target=target)
    # Status 1 may also mean that a log grew meanwhile.
    if receiver.receive(folder, command, listing, compress=compress) and len(receiver.paths) < len(names):
        raise receiver.failure(command)
    return [receiver.paths[name] for name in names if name in receiver.paths]


def fetch_listed(
    shell: Shell, folder: str, sizes: Mapping[str, int], target: Path, *, compress: bool
) -> Fetched:
    """Fetch files that the instance has listed; see `model.remote.Connection`."""
    if stray := next((name for name in sizes if not is_below(name)), None):
        raise _unrequested_error(shell, stray)
    target.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target).free - KEPT_FREE
    left: dict[str, str] = {}
    for name, size in sorted(sizes.items(), key=lambda item: item[1]):
        if size > free:
            left[name] = _no_room(name, size, free, target)
        else:
            free -= size
    names = [name for name in sizes if name not in left]
    if not names:
        return Fetched(paths=[], left=left)
    listing = b"".join(f"./{name}".encode(errors="surrogateescape") + b"\0" for name in names)
    command = f"tar -c{'z' if compress else ''}hf - --null -T -"
    receiver = _Receiver(shell=shell, names=frozenset(names), target=target)
    if receiver.receive(folder, command, listing, compress=compress) and not receiver.paths:
        raise receiver.failure(command)
    left |= {name: "it is gone" for name in names if name not in receiver.paths}
    return Fetched(paths=[receiver.paths[name] for name in names if name in receiver.paths], left=left)


def _list_files(shell: Shell, folder: str, patterns: list[str]) -> list[str]:
    """List the regular files below the folder on the instance; match them here, by one rule everywhere."""
    command = f"cd {shlex.quote(not_an_option(folder))} && find . -type f -print0"
    lines = shell.check(command).split(b"\0")
    names = [line.decode(errors="surrogateescape").removeprefix("./") for line in lines if line]
    if stray := next((name for name in names if not is_below(name)), None):
        raise _unrequested_error(shell, stray)
    matching = sorted({name for name in names if matches(name, patterns)})
    if len(matching) > MOST_FILES:
        message = f"{shell.endpoint.instance_id}: {len(matching)} files match in {folder}"
        raise RemoteCommandError(f"{message}; at most {MOST_FILES} are fetched", "keep them as one archive")
    return matching


@dataclass(slots=True, kw_only=True)
class _Receiver:
    """Writes the requested files of one tar stream, and refuses anything else."""

    shell: Shell
    names: frozenset[str]
    target: Path
    paths: dict[str, Path] = field(default_factory=dict)  # what was written, by name
    stderr: bytes = b""
    status: int = 0

    def receive(self, folder: str, command: str, listing: bytes, *, compress: bool) -> int:
        """Run tar on the instance, and write what it sends; return its exit status."""
        where = shlex.quote(not_an_option(folder))
        with self.shell.start(f"cd {where} && {command}", stdin=listing) as process:
            self._unpack(process, "r|gz" if compress else "r|")
            self._skip_padding(process)
            self.status = process.wait()
            self.stderr = bytes(process.stderr)
        return self.status

    def failure(self, command: str) -> RemoteCommandError:
        return self.shell.command_error(command, self.status, self.stderr)

    def _skip_padding(self, process: RemoteProcess) -> None:
        """Read what follows the end of an archive, which is little."""
        size = 0
        for piece in process.read_stdout():
            size += len(piece)
            if size > _PADDING:
                instance_id = self.shell.endpoint.instance_id
                raise RemoteCommandError(f"{instance_id}: sent more than the requested files")

    def _unpack(self, process: RemoteProcess, mode: Literal["r|", "r|gz"]) -> None:
        target = self.target
        try:
            target.mkdir(parents=True, exist_ok=True)
            stream = io.BufferedReader(_Source(process.read_stdout()), _BLOCK)
            with tarfile.open(fileobj=stream, mode=mode, tarinfo=_Member) as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if name not in self.names or name in self.paths or not _is_plain(member):
                        raise _unrequested_error(self.shell, member.name)
                    member.name = name
                    self._write(archive, member)
        except (tarfile.TarError, zlib.error, ValueError, ArithmeticError, EOFError) as e:
            if process.is_drained and (status := process.wait()):
                raise self.shell.command_error("tar", status, bytes(process.stderr)) from e
            instance_id = self.shell.endpoint.instance_id
            raise RemoteCommandError(f"{instance_id}: its answer is not a tar archive: {e}") from e
        except OSError as e:
            raise StoreError(f"cannot write {e.filename or target}: {e.strerror or e}") from e

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one member, whole or not at all; a hard link, which tar sends as a link, becomes a copy."""
        target, name = self.target, member.name
        path = target / name
        if not path.resolve().is_relative_to(target.resolve()):
            raise _unrequested_error(self.shell, name)
        first = member.linkname.removeprefix("./")
        if member.isreg():
            content: IO[bytes] | None = archive.extractfile(member)
        else:
            content = self.paths[first].open("rb") if first in self.paths else None
        if content is None:
            raise _unrequested_error(self.shell, name)
        with content:
            size = member.size if member.isreg() else os.fstat(content.fileno()).st_size
            # Known before the content, of which nothing is written if the disk would be full then.
            if size > (free := shutil.disk_usage(target).free - KEPT_FREE):
                message = f"{_no_room(name, size, free, target)}; it is not fetched"
                raise StoreError(message, "free space there, or keep less of the run (keep.files)")
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path, mode=_safe_mode(member.mode)) as draft:
                with draft.open("wb") as file:
                    shutil.copyfileobj(content, file, _BLOCK)
                # Any time can be stated.
                with contextlib.suppress(OverflowError, ValueError, TypeError, OSError):
                    os.utime(draft, (member.mtime or 0, member.mtime or 0))
        self.paths[name] = path


def _no_room(name: str, size: int, free: int, target: Path) -> str:
    reserve = f"beyond the {KEPT_FREE >> 20} MiB that stay free"
    return f"{name!r} has {size} bytes, and {max(0, free)} are free at {target} {reserve}"


def _safe_mode(mode: int) -> int:
    """Return the mode of a file that its owner can read and write, and no other user can write.

    Source: CPython's tarfile, `data_filter`, which Python 3.11.2 (Debian 12) lacks.
    """
    kept = mode & 0o755
    return (kept if kept & 0o100 else kept & 0o644) | 0o600


def _is_plain(member: tarfile.TarInfo) -> bool:
    """True for a file or a hard link as tar makes them; a sparse file states any size with few bytes."""
    return (member.isreg() or member.islnk()) and not member.issparse() and member.size >= 0


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
