"""The SSH server of one instance: commands, shells and SFTP as real processes and files of this machine.

As sshd: `authorized_keys` is read at every login, a connection has 10 sessions (MaxSessions), a shell
without a terminal reads its commands from the client's input, and /run/nologin keeps all but root out.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncssh

from dlcloud.local.instance.connecting import connect_as_instance
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.inside import carry
from dlcloud.local.instance.peers import is_refused_peer
from dlcloud.local.instance.ssh_sessions import run_session
from dlcloud.local.tree.instance_tree import InstanceTree

_LOGIN_S = 60.0
_KEEPALIVE_S = 30.0
_BACKLOG = 128
_MOST_CONNECTIONS, _MOST_FORWARDED = 256, 256
_SFTP_VERSION = 3
MAX_SESSIONS = 10
"""Sessions of a connection, as sshd's MaxSessions."""

log = logging.getLogger(__name__)


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
            OSError: They cannot be read.
            ValueError: They are not in OpenSSH's form.
        """
        content = self.tree.read(self.authorized_keys[username])
        return asyncssh.import_authorized_keys(content.decode(errors="replace"))

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
    _connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    _running: "set[asyncio.Task[Any] | None]" = field(default_factory=set)

    async def open(self, listener: socket.socket) -> asyncssh.SSHAcceptor:
        """Answer on a bound socket, too, until what is returned is closed.

        A cancelled opening leaves the event loop nothing of the socket: it would give the events of the next
        file that has the descriptor's number to this server, and that file would wait for ever.
        """
        opening = asyncio.ensure_future(
            asyncssh.create_server(
                self._login,
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

    def end_logins(self) -> None:
        """Take no new connections and cut the open ones, as sshd does at SIGTERM."""
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in list(self._connections):
            connection.abort()

    async def close(self) -> None:
        """Take no new connections, cut the open ones, and wait until they have ended."""
        connections = list(self._connections)
        self.end_logins()
        if connections:
            closing = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
            await asyncio.wait(closing, timeout=1.0)
        for acceptor in self._acceptors:
            # Only now: from Python 3.12 on this waits for the connections as well.
            await acceptor.wait_closed()
        self._acceptors.clear()

    def _login(self) -> "_Login":
        return _Login(
            admits=self._admits,
            files=self.files,
            connections=self._connections,
            run=self._run,
            connect=self._connect,
            instance_users=self.instance_users,
        )

    def _admits(self, key: asyncssh.SSHKey) -> bool:
        return self._admitted.get(key.public_data, 0.0) > time.monotonic()

    async def _connect(self, host: str, port: int) -> socket.socket:
        return await connect_as_instance(self.container, self.interpreter, self.env, host, port)

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        """Run a session; it goes on when its connection, which held its task, is gone."""
        task = asyncio.current_task()
        self._running.add(task)
        try:
            await run_session(process, env=self.env, container=self.container, interpreter=self.interpreter)
        finally:
            self._running.discard(task)


_Connect = Callable[[str, int], Coroutine[Any, Any, socket.socket]]
_Run = Callable[["asyncssh.SSHServerProcess[bytes]"], Coroutine[Any, Any, None]]


class _Login(asyncssh.SSHServer):
    """One connection: public keys only, and a limit of sessions.

    Args:
        admits: True for a key that is accepted beside those of the file.
        files: Who may log in.
        connections: Gets the connection while it is open.
        run: Runs a session's command, shell or SFTP server.
        connect: Makes a connection with the rights of the instance.
        instance_users: The user ids of instances' programs.
    """

    def __init__(
        self,
        *,
        admits: Callable[[asyncssh.SSHKey], bool],
        files: LoginFiles,
        connections: set[asyncssh.SSHServerConnection],
        run: _Run,
        connect: _Connect,
        instance_users: range,
    ) -> None:
        self._admits = admits
        self._files = files
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None
        self._run = run
        self._connect = connect
        self._forwarded = 0
        self._instance_users = instance_users
        self._sessions: set[_Session] = set()

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)
        ends = (conn.get_extra_info("peername"), conn.get_extra_info("sockname"))
        if is_refused_peer(*ends, self._instance_users):
            log.warning("refused a connection of another user of this machine")
            conn.abort()
        elif len(self._connections) > _MOST_CONNECTIONS:
            log.warning("refused a connection beyond %d", _MOST_CONNECTIONS)
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("an SSH connection ended: %s", exc)
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        """Read the authorized keys, which may have changed since the last login."""
        if self._connection is not None and self._files.may_log_in(username):
            try:
                self._connection.set_authorized_keys(self._files.read_keys(username))
            except (OSError, ValueError) as error:
                log.info("no authorized keys for user %s: %s", username, error)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept a key that is not in the file."""
        admits = self._files.may_log_in(username) and self._admits(key)
        if not admits:
            log.info("refused an unknown key of user %s", username)
        return admits

    def session_requested(self) -> "tuple[asyncssh.SSHServerChannel[bytes], _Session] | bool":
        """Open a session, unless the connection has as many as sshd allows."""
        if self._connection is None or len(self._sessions) >= MAX_SESSIONS:
            log.info("refused a session beyond %d", MAX_SESSIONS)
            return False
        session = _Session(self._run, self._sessions.discard)
        self._sessions.add(session)
        return self._connection.create_server_channel(), session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Callable[..., Coroutine[Any, Any, None]] | bool:
        """Allow forwarding, as sshd does: a logged-in user may run any program anyway."""
        log.debug("forwarding from %s:%d to %s:%d", orig_host, orig_port, dest_host, dest_port)
        return self._forwarded < _MOST_FORWARDED and partial(self._forward, dest_host, dest_port)

    async def _forward(
        self, host: str, port: int, reader: "asyncssh.SSHReader[bytes]", writer: "asyncssh.SSHWriter[bytes]"
    ) -> None:
        self._forwarded += 1
        try:
            await carry(await self._connect(host, port), reader, writer)
        except OSError as error:
            log.info("a forwarded connection could not be made: %s", error)
            writer.close()
        finally:
            self._forwarded -= 1


class _Session(asyncssh.SSHServerProcess[bytes]):
    """A session, which counts until its program has ended, or its channel where it has none."""

    def __init__(self, run: _Run, on_end: "Callable[[_Session], None]") -> None:
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
