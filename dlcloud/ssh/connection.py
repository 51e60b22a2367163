"""A session with one instance whose host key is proven."""

import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.model.remote import Completed, Endpoint, Fetched, SentFile
from dlcloud.model.untrusted import printable
from dlcloud.ssh import copy, fetch
from dlcloud.ssh.process import SIGNALLED, Feed, RemoteProcess, Transports, Turns, Write

# Commands at the same time. sshd allows 10 sessions per transport, and may still count two that have just
# ended.
_CHANNELS = 8
_STDERR_TAIL = 1 << 14
MOST_OUTPUT = 1 << 26
"""Bytes of each stream that are kept in memory of a command that is run to its end."""
_SHOWN_STDERR = 2000
_SHOWN_COMMAND = 80
_WITHOUT_STATUS = "ended without an exit status: killed by a signal, or the server closed its session"


class SshConnection:
    """A logged-in session; implements `model.remote.Connection`, which documents the methods.

    Connections to many instances share their `turns`.
    """

    def __init__(self, *, endpoint: Endpoint, transports: Transports, turns: Turns | None = None) -> None:
        self.endpoint = endpoint
        self._transports = transports
        self._turns = turns or Turns()
        self._channels = threading.BoundedSemaphore(_CHANNELS)
        self._compress = not is_loopback(endpoint.host)

    @property
    def is_open(self) -> bool:
        """True until the session is known to have ended; the instance is not asked."""
        return self._transports.is_active()

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        with self._process(command, stdin=stdin, timeout_s=timeout_s, stderr_limit=MOST_OUTPUT) as process:
            stdout = self._read_all(process)
            status = process.wait()
            return Completed(exit_status=status, stdout=stdout, stderr=bytes(process.stderr))

    def _read_all(self, process: RemoteProcess) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for piece in process.read_stdout():
            pieces.append(piece)
            size += len(piece)
            if size > MOST_OUTPUT:
                message = f"{self.endpoint.instance_id}: a command printed more than {MOST_OUTPUT >> 20} MiB"
                raise RemoteCommandError(f"{message}; it was given up")
        return b"".join(pieces)

    def check(self, command: str, *, stdin: bytes = b"", timeout_s: float | None = None) -> bytes:
        completed = self.run(command, stdin=stdin, timeout_s=timeout_s)
        if completed.exit_status:
            raise self.command_error(command, completed.exit_status, completed.stderr)
        return completed.stdout

    def stream(self, command: str) -> Iterator[bytes]:
        with self._process(command, stderr_limit=_STDERR_TAIL) as process:
            yield from process.read_stdout()
            if status := process.wait():
                raise self.command_error(command, status, bytes(process.stderr))

    def relay(self, command: str, *, out: Write, err: Write) -> int:
        with self._process(command, on_stderr=err) as process:
            for piece in process.read_stdout():
                out(piece)
            return process.wait()

    def send_tree(self, source: Path, target: str, *, only: Callable[[Path], bool] | None = None) -> None:
        copy.send_tree(self, source, target, only=only, compress=self._compress)

    def send_files(
        self, files: Sequence[SentFile], target: str, *, on_sent: Callable[[int], None] | None = None
    ) -> None:
        copy.send_files(self, files, target, on_sent=on_sent, compress=self._compress)

    def send_bytes(self, content: bytes, target: str, *, mode: int = 0o644) -> None:
        copy.send_bytes(self, content, target, mode=mode)

    def send_contents(self, contents: Mapping[str, bytes], target: str) -> None:
        copy.send_contents(self, contents, target)

    def pipe(self, command: str, pieces: Iterable[bytes]) -> None:
        def feed(write: Write) -> None:
            for piece in pieces:
                write(piece)

        self.feed(command, feed)

    def fetch_files(self, folder: str, patterns: Iterable[str], target: Path) -> list[Path]:
        return fetch.fetch_files(self, folder, patterns, target, compress=self._compress)

    def fetch_listed(self, folder: str, sizes: Mapping[str, int], target: Path) -> Fetched:
        return fetch.fetch_listed(self, folder, sizes, target, compress=self._compress)

    def close(self) -> None:
        self._transports.close()

    def feed(self, command: str, feed: Feed) -> None:
        """Run a command on input that is produced while it is sent.

        Raises:
            RemoteCommandError: The command ended with a status other than 0.
            UnreachableError: The connection broke.
        """
        with self._process(command, stdin=feed, stderr_limit=_STDERR_TAIL) as process:
            for _ in process.read_stdout():
                pass
            if status := process.wait():
                raise self.command_error(command, status, bytes(process.stderr))

    @contextmanager
    def start(self, command: str, *, stdin: bytes) -> Iterator[RemoteProcess]:
        """Start a command whose output the caller reads in pieces."""
        with self._process(command, stdin=stdin, stderr_limit=_STDERR_TAIL) as process:
            yield process

    def command_error(self, command: str, status: int, stderr: bytes) -> RemoteCommandError:
        """Return the error of a command that failed, with the end of its stderr."""
        first = command.strip().partition("\n")[0]
        shown = first if len(first) <= _SHOWN_COMMAND else f"{first[:_SHOWN_COMMAND]}..."
        how = _WITHOUT_STATUS if status == SIGNALLED else f"ended with status {status}"
        output = printable(stderr.decode(errors="replace").strip()[-_SHOWN_STDERR:])
        message = f"{self.endpoint.instance_id}: `{shown}` {how}"
        return RemoteCommandError(f"{message}:\n{output}" if output else message)

    @contextmanager
    def _process(
        self,
        command: str,
        *,
        stdin: bytes | Feed = b"",
        timeout_s: float | None = None,
        stderr_limit: int | None = None,
        on_stderr: Write | None = None,
    ) -> Iterator[RemoteProcess]:
        started = time.monotonic()
        if not self._channels.acquire(timeout=timeout_s):
            raise UnreachableError(
                f"{self.endpoint.instance_id}: {_CHANNELS} commands were still running after {timeout_s:g} s"
            )
        try:
            left = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started))
            process = RemoteProcess(
                endpoint=self.endpoint,
                transports=self._transports,
                turns=self._turns,
                command=command,
                stdin=stdin,
                timeout_s=left,
                stderr_limit=stderr_limit,
                on_stderr=on_stderr,
            )
            try:
                yield process
            finally:
                process.close()
        finally:
            self._channels.release()


def is_loopback(host: str) -> bool:
    """True if `host` is a loopback address; a name is not, as it may resolve to any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
