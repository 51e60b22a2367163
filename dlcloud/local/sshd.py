"""The SSH server of one instance: commands, shells and SFTP as real processes and files of this machine."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from dlcloud.local.sessions import run_session

_LOGIN_S = 60.0
_KEEPALIVE_S = 30.0
_BACKLOG = 128

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SshServer:
    """Lets the holders of the authorized keys in, under any user name.

    Args:
        host_key: The instance's ed25519 key.
        authorized: Public keys, one OpenSSH line each; lines that are none are left out.
        env: The environment of every session.
        home: Where sessions and relative SFTP paths begin.
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
            lambda: _Login(self._knows, self._connections),
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
        """Let the holder of one more key in, for a while.

        Raises:
            ValueError: It is no public key.
        """
        try:
            key = asyncssh.import_public_key(public_key)
        except asyncssh.KeyImportError as error:
            raise ValueError("this is no public key in OpenSSH's form") from error
        now = time.monotonic()
        still = {data: ends for data, ends in self._admitted.items() if ends > now}
        self._admitted = {**still, key.public_data: now + seconds}

    def refuse(self) -> None:
        """Take no new connections; those open go on."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Take no new connections and cut the open ones."""
        self.refuse()
        open_ones = list(self._connections)
        for connection in open_ones:
            connection.abort()
        if open_ones:
            await asyncio.wait([asyncio.ensure_future(each.wait_closed()) for each in open_ones], timeout=1.0)
        if self._acceptor is not None:
            # Only now: from Python 3.12 on this waits for the connections as well.
            await self._acceptor.wait_closed()
            self._acceptor = None

    def _knows(self, key: asyncssh.SSHKey) -> bool:
        data = key.public_data
        return data in self._keys or self._admitted.get(data, 0.0) > time.monotonic()

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        await run_session(process, env=self.env, home=self.home, interpreter=self.interpreter)


class _Login(asyncssh.SSHServer):
    """One connection: public keys only, the exact ones."""

    def __init__(
        self, knows: Callable[[asyncssh.SSHKey], bool], connections: set[asyncssh.SSHServerConnection]
    ) -> None:
        self._knows = knows
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("an SSH connection ended: %s", exc)
        if self._connection is not None:
            self._connections.discard(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        known = self._knows(key)
        if not known:
            log.info("refused an unknown key of user %s", username)
        return known

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Allow forwarding, as sshd does: who is logged in may run any program anyway."""
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
