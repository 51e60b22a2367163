"""The SSH server of one instance: commands, shells and SFTP as real processes and files of this machine.

As sshd: `authorized_keys` is read at every login, a connection has 10 sessions (MaxSessions), and a shell
without a terminal reads its commands from the client's input.
"""

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
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from dlcloud.local.peers import belongs_to_other_user
from dlcloud.local.processes import UMASK, shell_path

_LOGIN_S = 60.0
_KEEPALIVE_S = 30.0
_BACKLOG = 128
_SFTP_VERSION = 3
MAX_SESSIONS = 10
"""Sessions of a connection, as sshd's MaxSessions."""
_CHUNK = 65536
# Makes the terminal on its standard input the controlling one, then becomes the given program.
_TAKE_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SshServer:
    """Accepts the keys of `~/.ssh/authorized_keys`, under any user name.

    Args:
        host_key: The instance's ed25519 key.
        env: The environment of every session.
        home: The working folder of sessions and SFTP.
        interpreter: A Python that gives a shell its terminal.
    """

    host_key: asyncssh.SSHKey
    env: Mapping[str, str]
    home: Path
    interpreter: str
    _admitted: dict[bytes, float] = field(default_factory=dict)
    _acceptor: asyncssh.SSHAcceptor | None = None
    _connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)

    async def open(self, listener: socket.socket) -> None:
        """Answer on a bound socket from now on."""
        self._acceptor = await asyncssh.create_server(
            lambda: _Login(
                admits=self._admits,
                authorized_keys=self.home / ".ssh/authorized_keys",
                connections=self._connections,
                run=self._run,
                sftp=lambda channel: _HomeSftp(channel, self.home),
            ),
            sock=listener,
            backlog=_BACKLOG,
            server_host_keys=[self.host_key],
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

    def _admits(self, key: asyncssh.SSHKey) -> bool:
        return self._admitted.get(key.public_data, 0.0) > time.monotonic()

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        await _run_session(process, env=self.env, home=self.home, interpreter=self.interpreter)


_Run = Callable[["asyncssh.SSHServerProcess[bytes]"], Coroutine[Any, Any, None]]
_Sftp = Callable[[Any], asyncssh.SFTPServer]  # of a channel


class _Login(asyncssh.SSHServer):
    """One connection: public keys only, and a limit of sessions.

    Args:
        admits: True for a key that is accepted beside those of the file.
        authorized_keys: The file of authorized keys, in OpenSSH's form with its options.
        connections: Gets the connection while it is open.
        run: Runs a session's command or shell.
        sftp: Returns the SFTP server of a session.
    """

    def __init__(
        self,
        *,
        admits: Callable[[asyncssh.SSHKey], bool],
        authorized_keys: Path,
        connections: set[asyncssh.SSHServerConnection],
        run: _Run,
        sftp: _Sftp,
    ) -> None:
        self._admits = admits
        self._authorized_keys = authorized_keys
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None
        self._run = run
        self._sftp = sftp
        self._sessions: set[_Session] = set()

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

    def begin_auth(self, username: str) -> bool:
        """Read the authorized keys, which may have changed since the last login."""
        if self._connection is not None:
            try:
                self._connection.set_authorized_keys(str(self._authorized_keys))
            except (OSError, ValueError) as error:
                log.info("no authorized keys for user %s: %s", username, error)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept a key that is not in the file."""
        admits = self._admits(key)
        if not admits:
            log.info("refused an unknown key of user %s", username)
        return admits

    def session_requested(self) -> "tuple[asyncssh.SSHServerChannel[bytes], _Session] | bool":
        """Open a session, unless the connection has as many as sshd allows."""
        if self._connection is None or len(self._sessions) >= MAX_SESSIONS:
            log.info("refused a session beyond %d", MAX_SESSIONS)
            return False
        session = _Session(self._run, self._sftp, self._sessions.discard)
        self._sessions.add(session)
        return self._connection.create_server_channel(), session

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Allow forwarding, as sshd does: a logged-in user may run any program anyway."""
        log.debug("forwarding from %s:%d to %s:%d", orig_host, orig_port, dest_host, dest_port)
        return True


class _Session(asyncssh.SSHServerProcess[bytes]):
    """A session, which counts until its program has ended, or its channel where it has none."""

    def __init__(self, run: _Run, sftp: _Sftp, on_end: "Callable[[_Session], None]") -> None:
        super().__init__(self._run_program, sftp, _SFTP_VERSION, allow_scp=False)
        self._run = run
        self._on_end = on_end
        self._has_program = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._has_program:
            self._on_end(self)

    async def _run_program(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        self._has_program = True
        try:
            await self._run(process)
        finally:
            self._on_end(self)


class _HomeSftp(asyncssh.SFTPServer):
    """Files as the session's commands see them: relative to home, absolute as on this machine."""

    def __init__(self, channel: "asyncssh.SSHServerChannel[bytes]", home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return os.path.normpath(os.path.join(self._home, path))  # noqa: PTH118 - bytes, which Path cannot hold


async def _run_session(
    process: "asyncssh.SSHServerProcess[bytes]", *, env: Mapping[str, str], home: Path, interpreter: str
) -> None:
    """Run a session's command or shell to its end and send its exit status.

    The process outlives a dropped connection, as under sshd; it is never signalled by one.
    """
    shell = shell_path()
    argv = [shell, "-c", process.command] if process.command is not None else [shell, "-l"]
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
