"""The SSH server of one instance: commands, shells and SFTP as real processes and files of this machine."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from dlcloud.local.peers import belongs_to_other_user
from dlcloud.local.processes import UMASK, shell_path

_LOGIN_S = 60.0
_KEEPALIVE_S = 30.0
_BACKLOG = 128
_CHUNK = 65536
# Makes the terminal on its standard input the controlling one, then becomes the given program.
_TAKE_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SshServer:
    """Accepts the authorized keys, under any user name.

    Args:
        host_key: The instance's ed25519 key.
        authorized: Public keys, one OpenSSH line each; other lines are ignored.
        env: The environment of every session.
        home: The working folder of sessions and SFTP.
        interpreter: A Python that gives a shell its terminal.
    """

    host_key: asyncssh.SSHKey
    authorized: tuple[str, ...]
    env: Mapping[str, str]
    home: Path
    interpreter: str
    _keys: frozenset[bytes] = frozenset()
    _admitted: dict[bytes, float] = field(default_factory=dict)
    _acceptor: asyncssh.SSHAcceptor | None = None
    _connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)

    async def open(self, listener: socket.socket) -> None:
        """Answer on a bound socket from now on."""
        self._keys = _public_data(self.authorized)
        self._acceptor = await asyncssh.create_server(
            lambda: _Login(self._is_authorized, self._connections),
            sock=listener,
            backlog=_BACKLOG,
            server_host_keys=[self.host_key],
            process_factory=self._run,
            sftp_factory=lambda channel: _HomeSftp(channel, self.home),
            encoding=None,
            line_editor=False,
            login_timeout=_LOGIN_S,
            keepalive_interval=_KEEPALIVE_S,
            gss_host=None,
        )

    def admit(self, public_key: str, *, seconds: float) -> None:
        """Accept one more key for a while.

        Raises:
            ValueError: It is no public key.
        """
        try:
            key = asyncssh.import_public_key(public_key)
        except asyncssh.KeyImportError as error:
            raise ValueError("not a public key in OpenSSH's form") from error
        now = time.monotonic()
        valid = {data: ends for data, ends in self._admitted.items() if ends > now}
        self._admitted = {**valid, key.public_data: now + seconds}

    def refuse_logins(self) -> None:
        """Take no new connections; open ones go on."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Take no new connections and cut the open ones."""
        self.refuse_logins()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        if connections:
            closing = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
            await asyncio.wait(closing, timeout=1.0)
        if self._acceptor is not None:
            # Only now: from Python 3.12 on this waits for the connections as well.
            await self._acceptor.wait_closed()
            self._acceptor = None

    def _is_authorized(self, key: asyncssh.SSHKey) -> bool:
        data = key.public_data
        return data in self._keys or self._admitted.get(data, 0.0) > time.monotonic()

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        await _run_session(process, env=self.env, home=self.home, interpreter=self.interpreter)


class _Login(asyncssh.SSHServer):
    """One connection: public keys only, the exact ones."""

    def __init__(
        self, is_authorized: Callable[[asyncssh.SSHKey], bool], connections: set[asyncssh.SSHServerConnection]
    ) -> None:
        self._is_authorized = is_authorized
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)
        if belongs_to_other_user(conn.get_extra_info("peername"), conn.get_extra_info("sockname")):
            log.warning("refused a connection of another user of this machine")
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("an SSH connection ended: %s", exc)
        if self._connection is not None:
            self._connections.discard(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        is_authorized = self._is_authorized(key)
        if not is_authorized:
            log.info("refused an unknown key of user %s", username)
        return is_authorized

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Allow forwarding, as sshd does: a logged-in user may run any program anyway."""
        log.debug("forwarding from %s:%d to %s:%d", orig_host, orig_port, dest_host, dest_port)
        return True


class _HomeSftp(asyncssh.SFTPServer):
    """Files as the session's commands see them: relative to home, absolute as on this machine."""

    def __init__(self, channel: "asyncssh.SSHServerChannel[bytes]", home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return os.path.normpath(os.path.join(self._home, path))  # noqa: PTH118 - bytes, which Path cannot hold


def _public_data(lines: tuple[str, ...]) -> frozenset[bytes]:
    """Return the keys in the form that a login offers them."""
    keys = set()
    for line in lines:
        try:
            keys.add(asyncssh.import_public_key(line).public_data)
        except asyncssh.KeyImportError:
            log.warning("a line of the authorized keys is no public key")
    return frozenset(keys)


async def _run_session(
    process: "asyncssh.SSHServerProcess[bytes]", *, env: Mapping[str, str], home: Path, interpreter: str
) -> None:
    """Run a session's command or shell to its end and send its exit status.

    The process outlives a dropped connection, as under sshd; it is never signalled by one.
    """
    shell = shell_path()
    argv = [shell, "-c", process.command] if process.command is not None else [shell, "-i"]
    try:
        if process.term_type is None:
            status = await _with_pipes(process, argv, env=env, home=home)
        else:
            terminal_env = {**env, "TERM": process.term_type}
            argv = [interpreter, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
            status = await _with_terminal(process, argv, env=terminal_env, home=home)
    except OSError as error:
        log.warning("a session could not be started: %s", error)
        status = 255
    # The client may be gone.
    with contextlib.suppress(OSError, asyncssh.Error):
        if status >= 0:
            process.exit(status)
        else:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _with_pipes(
    process: "asyncssh.SSHServerProcess[bytes]", argv: list[str], *, env: Mapping[str, str], home: Path
) -> int:
    """Run with three pipes; the session ends when the process has ended and its output is closed."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=out_write,
            stderr=err_write,
            env=env,
            cwd=home,
            start_new_session=True,
            umask=UMASK,
        )
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    feeding = asyncio.create_task(_feed(process, child))
    try:
        await asyncio.gather(_drain(out_read, process.stdout), _drain(err_read, process.stderr))
        return await child.wait()
    finally:
        feeding.cancel()


async def _feed(process: "asyncssh.SSHServerProcess[bytes]", child: asyncio.subprocess.Process) -> None:
    """Copy the client's input to the process; the end of either closes the process's standard input."""
    if child.stdin is None:
        return
    try:
        async for chunk in _read_input(process):
            child.stdin.write(chunk)
            await child.stdin.drain()
    except OSError:
        log.debug("a process closed its standard input")
    finally:
        child.stdin.close()


async def _read_input(
    process: "asyncssh.SSHServerProcess[bytes]", terminal: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the client's input until its end; breaks and signals are ignored, as sshd long did."""
    while True:
        try:
            chunk = await process.stdin.read(_CHUNK)
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        except asyncssh.TerminalSizeChanged as change:
            if terminal is not None:
                _resize(terminal, (change.width, change.height, change.pixwidth, change.pixheight))
            continue
        except (asyncssh.Error, OSError):
            return
        if not chunk:
            return
        yield chunk


async def _drain(descriptor: int, writer: "asyncssh.SSHWriter[bytes]") -> None:
    """Copy a process's output to the client until the process closes the pipe or the client is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    except (OSError, asyncssh.Error):
        log.debug("the client left before the output ended")
    finally:
        transport.close()


async def _with_terminal(
    process: "asyncssh.SSHServerProcess[bytes]", argv: list[str], *, env: Mapping[str, str], home: Path
) -> int:
    """Run on a terminal of its own; hanging up sends the usual SIGHUP."""
    master, slave = os.openpty()
    try:
        _resize(master, process.term_size)
        child = await asyncio.create_subprocess_exec(
            *argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home, umask=UMASK
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    typing = asyncio.create_task(_type(process, master))
    showing = asyncio.create_task(_drain(os.dup(master), process.stdout))
    leaving = asyncio.create_task(process.wait_closed())
    tasks = (typing, showing, leaving)
    try:
        await asyncio.wait([showing, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.close(master)
    return await child.wait()


async def _type(process: "asyncssh.SSHServerProcess[bytes]", master: int) -> None:
    async for chunk in _read_input(process, master):
        await asyncio.to_thread(_write_all, master, chunk)


def _write_all(descriptor: int, chunk: bytes) -> None:
    """Write to a terminal, which takes little at a time; it may be closed already."""
    with contextlib.suppress(OSError):
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    width, height, pixel_width, pixel_height = size
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixel_width, pixel_height))
