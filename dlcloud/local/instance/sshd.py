"""The SSH server of one instance: commands, shells and SFTP as real processes and files of this machine.

`SshServer.open` answers on the instance's socket. A connection is counted, and cut if it is one too many;
its user is looked up in `authorized_keys`, which may have changed since the last login; each session then
runs a program in the instance's container, with its rights and never with the daemon's. Forwarded
connections are made by a program of the instance, too.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import asyncssh

from dlcloud.local.instance.addresses import ADDRESS, carry, has_many_addresses
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.peers import NoUser, is_refused_peer, peer_user
from dlcloud.local.instance.processes import shell_path
from dlcloud.local.tree.instance_tree import InstanceTree

_CHUNK = 65536
# Makes the terminal on its standard input the controlling one, then becomes the given program.
_TAKE_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"

log = logging.getLogger(__name__)


async def run_session(
    process: "asyncssh.SSHServerProcess[bytes]",
    *,
    env: Mapping[str, str],
    container: Container,
    interpreter: str,
) -> None:
    """Run a session's command or shell to its end and send its exit status.

    The process outlives a dropped connection, as under sshd; it is never signalled by one.
    """
    shell = shell_path()
    argv = [shell, "-c", process.command] if process.command is not None else [shell, "-l"]
    if process.subsystem is not None:
        argv = [interpreter, "-I", "-S", str(container.root / "lib/sftp_server.py")]
    try:
        if process.term_type is None:
            status = await _with_pipes(process, argv, env=env, container=container)
        else:
            terminal_env = {**env, "TERM": process.term_type}
            argv = [interpreter, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
            status = await _with_terminal(process, argv, env=terminal_env, container=container)
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
    process: "asyncssh.SSHServerProcess[bytes]",
    argv: list[str],
    *,
    env: Mapping[str, str],
    container: Container,
) -> int:
    """Run with three pipes; the session ends when the process has ended and its output is closed."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        child = await container.spawn(
            argv, env=env, stdin=asyncio.subprocess.PIPE, stdout=out_write, stderr=err_write
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
    process: "asyncssh.SSHServerProcess[bytes]",
    argv: list[str],
    *,
    env: Mapping[str, str],
    container: Container,
) -> int:
    """Run on its own terminal; hanging up sends the usual SIGHUP."""
    master, slave = container.open_terminal()
    try:
        _resize(master, process.term_size)
        child = await container.spawn(
            argv, env=env, stdin=slave, stdout=slave, stderr=slave, has_terminal=True
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
    os.set_blocking(master, False)
    async for chunk in _read_input(process, master):
        await _write_all(master, chunk)


async def _write_all(descriptor: int, chunk: bytes) -> None:
    """Write to a terminal, which takes little at a time; its other end may be closed already."""
    while chunk:
        try:
            chunk = chunk[os.write(descriptor, chunk) :]
        except BlockingIOError:
            await _await_room(descriptor)
        except OSError:
            return


async def _await_room(descriptor: int) -> None:
    loop, room = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, room.set)
    try:
        await room.wait()
    finally:
        loop.remove_writer(descriptor)


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    width, height, pixel_width, pixel_height = size
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixel_width, pixel_height))


_CONNECT_S = 15.0
# Names resolve as they do in the instance; the connected socket goes to the daemon by standard input.
_PROGRAM = """import socket, sys
host, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
    try:
        connected = socket.socket(family, kind, protocol)
        connected.settimeout(10)
        if source and address[0].startswith("127."):
            connected.bind((source, 0))
        connected.connect(address)
    except OSError:
        continue
    socket.send_fds(socket.socket(fileno=0), [b"."], [connected.fileno()])
    break
"""


async def connect_as_instance(
    container: Container, interpreter: str, env: Mapping[str, str], host: str, port: int
) -> socket.socket:
    """Return a connection that a program of the instance has made.

    Raises:
        OSError: It has made none.
    """
    ours, theirs = socket.socketpair()
    try:
        source = ADDRESS if has_many_addresses() else ""
        argv = [interpreter, "-I", "-S", "-c", _PROGRAM, host, str(port), source]
        with theirs:
            process = await container.spawn(
                argv, env=env, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        try:
            await asyncio.wait_for(process.wait(), _CONNECT_S)
        except TimeoutError as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise OSError(f"no connection to {host}:{port} within {_CONNECT_S:.0f} s") from error
        return _receive(ours, f"{host}:{port}")
    finally:
        ours.close()


def _receive(ours: socket.socket, name: str) -> socket.socket:
    """Return the connection that was sent; programs of the instance may have sent anything.

    Raises:
        OSError: It is none.
    """
    ours.setblocking(False)
    try:
        _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
    except BlockingIOError:
        descriptors = []
    if not descriptors:
        raise OSError(f"no connection to {name}")
    connected = socket.socket(fileno=descriptors[0])
    if connected.family not in (socket.AF_INET, socket.AF_INET6) or connected.type != socket.SOCK_STREAM:
        connected.close()
        raise OSError(f"no connection to {name}")
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


_LOGIN_S = 60.0
_KEEPALIVE_S = 30.0
_BACKLOG = 128
_MOST_CONNECTIONS, _MOST_FORWARDED = 256, 256
_MOST_KEY_BYTES = 64 * 1024  # of `authorized_keys`
_SFTP_VERSION = 3
MAX_SESSIONS = 10
"""Sessions of a connection, as sshd's MaxSessions."""


@lru_cache(maxsize=256)
def _parse_keys(content: bytes) -> "asyncssh.SSHAuthorizedKeys":
    """Read keys once: to do it takes 30 ms for 64 KiB, and any client of the port can ask for it."""
    return asyncssh.import_authorized_keys(content.decode(errors="replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginFiles:
    """The files of an instance that decide who may log in.

    Args:
        tree: The files of the instance.
        authorized_keys: The path of the file of keys by user name; others may not log in.
        nologin: While there is something at this path, only root may log in.
    """

    tree: InstanceTree
    authorized_keys: Mapping[str, str]
    nologin: str

    def read_keys(self, username: str) -> "asyncssh.SSHAuthorizedKeys":
        """Return the keys of a user with their options.

        Raises:
            OSError: They cannot be read, or are more than 64 KiB.
            ValueError: They are not in OpenSSH's form.
        """
        return _parse_keys(self.tree.read(self.authorized_keys[username], most=_MOST_KEY_BYTES))

    def may_log_in(self, username: str) -> bool:
        """Source: pam_nologin(8)."""
        return username in self.authorized_keys and (username == "root" or not self.tree.exists(self.nologin))


@dataclass(slots=True, kw_only=True)
class SshServer:
    """Accepts the keys of its users' `authorized_keys`.

    Args:
        host_key: The instance's ed25519 key.
        env: The environment of every session.
        container: Runs the programs of sessions.
        files: Who may log in.
        interpreter: A Python that gives a shell its terminal, and serves SFTP.
        instance_users: The user ids of instances' programs.
    """

    host_key: asyncssh.SSHKey
    env: Mapping[str, str]
    container: Container
    files: LoginFiles
    interpreter: str
    instance_users: range = range(0)
    _admitted: dict[bytes, float] = field(default_factory=dict)
    _acceptors: list[asyncssh.SSHAcceptor] = field(default_factory=list)
    connections: "dict[asyncssh.SSHServerConnection, _Login]" = field(default_factory=dict)
    _running: "set[asyncio.Task[Any] | None]" = field(default_factory=set)

    async def open(self, listener: socket.socket) -> asyncssh.SSHAcceptor:
        """Answer on a bound socket, too, until what is returned is closed.

        A cancelled opening leaves the event loop nothing of the socket: it would give the events of the next
        file that has the descriptor's number to this server, and that file would wait forever.
        """
        opening = asyncio.ensure_future(
            asyncssh.create_server(
                partial(_Login, self),
                sock=listener,
                backlog=_BACKLOG,
                server_host_keys=[self.host_key],
                encoding=None,
                line_editor=False,
                login_timeout=_LOGIN_S,
                keepalive_interval=_KEEPALIVE_S,
                gss_host=None,
            )
        )
        try:
            acceptor = await asyncio.shield(opening)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                (await opening).close()
            raise
        self._acceptors.append(acceptor)
        return acceptor

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

    def admits(self, key: asyncssh.SSHKey) -> bool:
        """True for a key that is accepted for now in addition to those of the files."""
        return self._admitted.get(key.public_data, 0.0) > time.monotonic()

    def end_logins(self) -> None:
        """Take no new connections and cut the open ones, as sshd does at SIGTERM."""
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in list(self.connections):
            connection.abort()

    async def close(self) -> None:
        """Take no new connections, cut the open ones, and wait until they have ended."""
        connections = list(self.connections)
        self.end_logins()
        if connections:
            closing = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
            await asyncio.wait(closing, timeout=1.0)
        for acceptor in self._acceptors:
            # Only now: from Python 3.12 on this waits for the connections as well.
            await acceptor.wait_closed()
        self._acceptors.clear()

    async def run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        """Run a session; it continues when its connection, which held its task, is gone."""
        task = asyncio.current_task()
        self._running.add(task)
        try:
            await run_session(process, env=self.env, container=self.container, interpreter=self.interpreter)
        finally:
            self._running.discard(task)


class _Login(asyncssh.SSHServer):
    """One connection: public keys only, and a limit of sessions."""

    def __init__(self, server: SshServer) -> None:
        self._server = server
        self._connection: asyncssh.SSHServerConnection | None = None
        self._forwarded = 0
        self._sessions: set[_Session] = set()
        self.is_of_instance = False
        self.has_logged_in = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        ends = (conn.get_extra_info("peername"), conn.get_extra_info("sockname"))
        if is_refused_peer(*ends, self._server.instance_users):
            log.warning("refused a connection of another user of this machine")
            conn.abort()
            return
        user = peer_user(*ends)
        self.is_of_instance = not isinstance(user, NoUser) and user in self._server.instance_users
        self._server.connections[conn] = self
        self._make_room(conn)

    def _make_room(self, new: asyncssh.SSHServerConnection) -> None:
        """Cut the oldest connection of the same kind that has not logged in, if there are too many.

        Those of instances and those of the owner are counted apart: neither locks the other out.
        """
        alike = {
            conn: one
            for conn, one in self._server.connections.items()
            if one.is_of_instance is self.is_of_instance
        }
        if len(alike) > _MOST_CONNECTIONS:
            log.warning("cut a connection beyond %d", _MOST_CONNECTIONS)
            next((conn for conn, one in alike.items() if not one.has_logged_in), new).abort()

    def auth_completed(self) -> None:
        """Note that the connection is of use."""
        self.has_logged_in = True

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("an SSH connection ended: %s", exc)
        if self._connection is not None:
            self._server.connections.pop(self._connection, None)

    def begin_auth(self, username: str) -> bool:
        """Read the authorized keys, which may have changed since the last login."""
        if self._connection is not None and self._server.files.may_log_in(username):
            try:
                self._connection.set_authorized_keys(self._server.files.read_keys(username))
            except (OSError, ValueError) as error:
                log.info("no authorized keys for user %s: %s", username, error)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept a key that is not in the file."""
        admits = self._server.files.may_log_in(username) and self._server.admits(key)
        if not admits:
            log.info("refused an unknown key of user %s", username)
        return admits

    def session_requested(self) -> "tuple[asyncssh.SSHServerChannel[bytes], _Session] | bool":
        """Open a session, unless the connection has as many as sshd allows."""
        if self._connection is None or len(self._sessions) >= MAX_SESSIONS:
            log.info("refused a session beyond %d", MAX_SESSIONS)
            return False
        session = _Session(self._server.run, self._sessions.discard)
        self._sessions.add(session)
        return self._connection.create_server_channel(), session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Callable[..., Coroutine[Any, Any, None]] | bool:
        """Allow forwarding, as sshd does: a logged-in user may run any program anyway."""
        log.debug("forwarding from %s:%d to %s:%d", orig_host, orig_port, dest_host, dest_port)
        if self._forwarded >= _MOST_FORWARDED:
            return False
        self._forwarded += 1  # now: many may be asked for before the first of them begins
        return partial(self._forward, dest_host, dest_port)

    async def _forward(
        self, host: str, port: int, reader: "asyncssh.SSHReader[bytes]", writer: "asyncssh.SSHWriter[bytes]"
    ) -> None:
        server = self._server
        try:
            connecting = connect_as_instance(server.container, server.interpreter, server.env, host, port)
            await carry(await connecting, reader, writer)
        except OSError as error:
            log.info("a forwarded connection could not be made: %s", error)
            writer.close()
        finally:
            self._forwarded -= 1


class _Session(asyncssh.SSHServerProcess[bytes]):
    """A session, which counts until its program has ended, or its channel where it has none."""

    def __init__(
        self,
        run: Callable[["asyncssh.SSHServerProcess[bytes]"], Coroutine[Any, Any, None]],
        on_end: "Callable[[_Session], None]",
    ) -> None:
        super().__init__(self._run_program, sftp_factory=None, sftp_version=_SFTP_VERSION, allow_scp=False)
        self._run = run
        self._on_end = on_end
        self._has_program = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._has_program:
            self._on_end(self)

    def subsystem_requested(self, subsystem: str) -> bool:
        """Allow SFTP, which a program of the instance serves."""
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Run SFTP's program as any other; asyncssh would serve the daemon's files."""
        if self._chan is None or self._conn is None or self._chan.get_subsystem() is None:
            super().session_started()
            return
        output = asyncssh.SSHWriter(self, self._chan)
        error = asyncssh.SSHWriter(self, self._chan, asyncssh.EXTENDED_DATA_STDERR)
        self._stdin, self._stdout, self._stderr = asyncssh.SSHReader(self, self._chan), output, error
        self._conn.create_task(self._run_program(self), self.logger)

    async def _run_program(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        self._has_program = True
        try:
            await self._run(process)
        finally:
            self._on_end(self)
