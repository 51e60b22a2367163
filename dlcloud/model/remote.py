"""What the floors above know of an instance as a machine to talk to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFile:
    """A file, folder or link.

    Attributes:
        path: On this machine.
        name: Relative to the target folder, with slashes.
        size: In bytes; 0 for a folder or a link.
        stamp: Changes with the content: of a file its mode, size and time, of a link its target.
    """

    path: Path
    name: str
    size: int = 0
    stamp: str = ""


if TYPE_CHECKING:  # most commands send nothing
    pass


class Access(StrEnum):
    """How SSH reaches the instances."""

    PUBLIC = "public"
    INSTANCE_CONNECT_ENDPOINT = "instance-connect-endpoint"
    SESSION_MANAGER = "session-manager"
    BASTION = "bastion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an instance's SSH server answers, and as whom to log in."""

    instance_id: str
    host: str
    port: int = 22
    user: str = "ubuntu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended: its exit status (-1: a signal ended it) and all that it wrote."""

    exit_status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What came of files that were requested from an instance.

    Attributes:
        paths: Where they are, in the order of the request.
        left: Names of those that were not written, with the reason.
    """

    paths: list[Path]
    left: Mapping[str, str]


class Connection(Protocol):
    """A session with one instance whose host key is proven; several threads may use it in parallel."""

    endpoint: Endpoint

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a shell command to its end.

        Raises:
            UnreachableError: The connection broke, or `timeout_s` passed.
        """

    def check(self, command: str, *, stdin: bytes = b"", timeout_s: float | None = None) -> bytes:
        """Run a shell command and return its standard output.

        Raises:
            RemoteCommandError: It ended with a status other than 0; the message carries the end of stderr.
            UnreachableError: The connection broke, or `timeout_s` passed.
        """

    def stream(self, command: str) -> Iterator[bytes]:
        """Run a shell command and yield its standard output in pieces, as they arrive.

        Closing the iterator gives the command up; its output is then closed, the program may continue.

        Raises:
            RemoteCommandError: It ended with a status other than 0, after all of its output was yielded.
            UnreachableError: The connection broke before the command ended.
        """

    def relay(self, command: str, *, out: Callable[[bytes], None], err: Callable[[bytes], None]) -> int:
        """Run a shell command, handing on what it writes, as it arrives; returns its exit status.

        Args:
            command: What to run; it has no input.
            out: Takes its standard output.
            err: Takes its standard error.

        Raises:
            UnreachableError: The connection broke before the command ended.
        """

    def send_tree(self, source: Path, target: str, *, only: Callable[[Path], bool] | None = None) -> None:
        """Copy a file or a folder's content to the folder `target` on the instance (made if missing).

        `__pycache__`, `.git`, sockets and devices stay here. A relative `target` lies below the login's home.

        Args:
            source: A file or a folder.
            target: A folder; it is quoted, so `~` and `$` mean themselves.
            only: Asked for every file with its path relative to `source`; False leaves it out.

        Raises:
            RecipeError: `source` cannot be read, or a link in it leads out of it.
            RemoteCommandError: The instance could not write it.
            UnreachableError: The connection broke; part of the tree may have been written.
        """

    def send_files(
        self, files: "Sequence[SentFile]", target: str, *, on_sent: Callable[[int], None] | None = None
    ) -> None:
        """Copy listed files, folders and links to the folder `target` on the instance (made if missing).

        Args:
            files: Folders before their content.
            target: As of `send_tree`.
            on_sent: Called with the bytes of each piece of a file that is on its way.

        Raises:
            RecipeError: A file cannot be read, or changed meanwhile.
            RemoteCommandError, UnreachableError: As of `send_tree`.
        """

    def send_bytes(self, content: bytes, target: str, *, mode: int = 0o644) -> None:
        """Write a file on the instance, whole or not at all; its folder is made if it is missing.

        Raises:
            RemoteCommandError: The instance could not write it.
            UnreachableError: The connection broke; the file is as it was.
        """

    def send_contents(self, contents: Mapping[str, bytes], target: str) -> None:
        """Write small files into the folder `target` on the instance (made if missing), each one whole.

        Args:
            contents: By name, without folders.
            target: As of `send_tree`.

        Raises:
            RemoteCommandError: The instance could not write them.
            UnreachableError: The connection broke; each file is as it was, or as it is to be.
        """

    def pipe(self, command: str, pieces: Iterable[bytes]) -> None:
        """Run a shell command on input that comes in pieces.

        Raises:
            RemoteCommandError: It ended with a status other than 0.
            UnreachableError: The connection broke.
        """

    def fetch_files(self, folder: str, patterns: Iterable[str], target: Path) -> list[Path]:
        """Bring home the regular files below `folder` that match any glob; returns where they lie, sorted.

        Args:
            folder: On the instance.
            patterns: Relative to `folder`; `*` stays within a folder level, `**` spans any number of them.
            target: Made if it is missing; files keep their names relative to `folder`.

        Raises:
            RemoteCommandError: `folder` cannot be read, or the instance sent what was not asked for.
                A pattern that matches nothing is no error.
            StoreError: A file cannot be written here.
            UnreachableError: The connection broke.
        """

    def fetch_listed(self, folder: str, sizes: Mapping[str, int], target: Path) -> Fetched:
        """Download files below `folder` that the instance listed; a link comes as the file that it leads to.

        A file that is gone meanwhile, or too large for the disk here, does not stop the others. `sizes`
        are in bytes, by the names relative to `folder`.

        Raises:
            RemoteCommandError: None could be read, or the instance sent what was not asked for.
            StoreError: A file cannot be written here.
            UnreachableError: The connection broke.
        """

    def close(self) -> None:
        """End the session; a program left running on the instance continues."""


class Dial(Protocol):
    """Opens connections to the instances of one cluster and keeps them open for reuse."""

    def dial(self, endpoint: Endpoint, *, wait_s: float = 0.0) -> Connection:
        """Return an open connection, a pooled one where there is one; wait up to `wait_s` for the server.

        Raises:
            UnreachableError: Nothing answered within `wait_s`, or the login was refused.
            HostKeyError: The host key is not the pinned one, or its proof is wrong; nothing was sent.
        """

    def close(self) -> None:
        """Close every pooled connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsLeft:
    """Results on an instance that were not downloaded: their folder below the login's home, and why."""

    folder: str
    reason: str
