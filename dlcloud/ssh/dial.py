"""Open connections to instances, proving each host key before anything is sent, and keep them for reuse.

`Dialer.dial` opens a socket (`route`), exchanges keys, compares the host key with the pinned one, and logs
in. A key that is not pinned yet is proven by the secret of the launch, and pinned, before the caller gets the
connection. Until `wait_s` has passed it tries again: an instance that boots refuses, times out, or knows no
key yet. A wrong host key is never tried again.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paramiko import AuthenticationException, Ed25519Key, SSHException, Transport

from dlcloud.model.clock import Clock
from dlcloud.model.errors import HostKeyError, InstanceError, StoreError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh.connection import SshConnection, is_loopback
from dlcloud.ssh.keys import KEY_TYPE, PROOF_COMMAND, KnownHosts, fingerprint, is_proof
from dlcloud.ssh.process import Transports, Turns, close_transport, explain, label
from dlcloud.ssh.route import Connect, connect_directly

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
_PROOF_ANSWER_S = 15.0
ANSWER_S = 15.0
"""Seconds for an answer of the server; more, up to the longest, if the dial waits longer."""
LONGEST_ANSWER_S = 60.0
BLOCKED_HINT = (
    "nothing between here and there answers: this network may block port 22, or SSH may leave it by another "
    "address than HTTPS. dlcloud up RECIPE --cidr NETWORK admits that, or set network.access in the recipe: "
    "session-manager or instance-connect-endpoint"
)
OTHER_KEY_HINT = "another machine may answer at this address, or intercept the connection"


@dataclass(slots=True)
class _Slot:
    """The pooled connection to one endpoint; the lock is held while it is being opened."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: SshConnection | None = None


class Dialer:
    """Dials the instances of one cluster; implements `model.remote.Dial`. Threads may share it.

    Args:
        key_path: The cluster's private key.
        known_hosts: The file of its pinned host keys.
        secret: Returns an instance's one-time secret, or None to accept a pinned key only.
        clock: Waits between attempts.
        fingerprint: The host key of the one instance that is dialled, if it was proven before.
        loopback_only: Refuse every address but this machine's own, before connecting (the local EC2).
        connect_timeout_s: Seconds for one TCP connection; short, as a lost SYN is repeated ever more rarely.
        connect: Opens a connection to an instance's SSH server, through whatever lies between.
        waiting: Shows what the block waits for.
    """

    def __init__(
        self,
        *,
        key_path: Path,
        known_hosts: Path,
        secret: Callable[[str], str | None],
        clock: Clock,
        fingerprint: str = "",
        loopback_only: bool = False,
        connect_timeout_s: float = 5.0,
        connect: Connect = connect_directly,
        waiting: Callable[[str], contextlib.AbstractContextManager[None]] = lambda _: (
            contextlib.nullcontext()
        ),
    ) -> None:
        self._key_path = key_path
        self._waiting = waiting
        self._key: Ed25519Key | None = None
        self._pins = KnownHosts(known_hosts)
        self._secret = secret
        self._clock = clock
        self._fingerprint = fingerprint
        self._loopback_only = loopback_only
        self._connect_timeout_s = connect_timeout_s
        self._connect = connect
        self._lock = threading.Lock()
        self._slots: dict[Endpoint, _Slot] = {}
        self._closed = False
        self._turns = Turns()

    def dial(self, endpoint: Endpoint, *, wait_s: float = 0.0) -> SshConnection:
        """Return an open connection, a pooled one where there is one; see `model.remote.Dial`."""
        if self._loopback_only and not is_loopback(endpoint.host):
            raise UnreachableError(
                f"{label(endpoint)}: the local EC2 has loopback addresses only; not connecting"
            )
        started = self._clock.monotonic()  # before the wait for another thread that dials the same instance
        with self._lock:
            slot = self._slots.setdefault(endpoint, _Slot())
        with slot.lock:
            if slot.connection is None or not slot.connection.is_open:
                with self._waiting(f"connecting to {label(endpoint)} ..."):
                    slot.connection = self._open(endpoint, _Wait(self._clock, started, wait_s))
            if self._closed:
                slot.connection.close()
                raise _closed_error(endpoint)
            return slot.connection

    def close(self) -> None:
        """Close every pooled connection; running dials give up at their next attempt."""
        self._closed = True
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()

    def _open(self, endpoint: Endpoint, wait: "_Wait") -> SshConnection:
        """Try until the deadline; a wrong host key ends the attempts."""
        cause: Exception
        while True:
            if self._closed:
                raise _closed_error(endpoint)
            try:
                return self._attempt(endpoint, wait)
            except _NoProofYetError as e:
                # Not a wrong proof: the instance is still in its first boot, and may be dialled again.
                raise UnreachableError(
                    f"{label(endpoint)} has not proven its host key{wait.duration()}: no proof written",
                    hint="user data still runs, or failed: see /var/log/cloud-init-output.log there",
                ) from e
            except AuthenticationException as e:
                self._refuse_other_user(endpoint)
                failed, cause = f"{label(endpoint)}: login refused for user {endpoint.user}", e
            except (OSError, EOFError, SSHException, UnreachableError) as e:
                failed, cause = f"{label(endpoint)}: no SSH connection: {explain(e)}", e
            log.debug("%s", failed)
            if not wait.pause():
                hint = BLOCKED_HINT if isinstance(cause, TimeoutError) else getattr(cause, "hint", "")
                raise UnreachableError(f"{failed}{wait.duration()}", hint) from cause

    def _attempt(self, endpoint: Endpoint, wait: "_Wait") -> SshConnection:
        answer_timeout_s = max(ANSWER_S, min(wait.left_s(), LONGEST_ANSWER_S))
        transport, host_key, secret = self._log_in(endpoint, answer_timeout_s)
        transports = Transports(transport, lambda: self._reconnect(endpoint))
        connection = SshConnection(endpoint=endpoint, transports=transports, turns=self._turns)
        try:
            if secret is not None:
                self._prove(connection, host_key, secret, wait)
                self._pins.pin(endpoint.instance_id, host_key)
        except BaseException:
            connection.close()
            raise
        return connection

    def _log_in(self, endpoint: Endpoint, answer_timeout_s: float) -> tuple[Transport, str, str | None]:
        """Return a logged-in transport, its host key, and the secret that must still prove it, or None."""
        transport, host_key = exchange_keys(
            endpoint,
            connect_timeout_s=self._connect_timeout_s,
            answer_timeout_s=answer_timeout_s,
            connect=self._connect,
        )
        try:
            secret = self._secret_to_prove(endpoint, host_key)
            log_in(transport, endpoint.user, self._login_key())
        except BaseException:
            close_transport(transport)
            raise
        return transport, host_key, secret

    def _refuse_other_user(self, endpoint: Endpoint) -> None:
        """Raise InstanceError if the image gives its keys to another user; else a login may work later."""
        with contextlib.suppress(OSError, EOFError, SSHException):
            transport, _ = exchange_keys(
                endpoint,
                connect_timeout_s=self._connect_timeout_s,
                answer_timeout_s=ANSWER_S,
                connect=self._connect,
            )
            with contextlib.closing(transport):
                user = ask_default_user(transport, self._login_key(), timeout_s=ANSWER_S)
            if user not in {"", endpoint.user}:
                raise InstanceError(
                    f"{label(endpoint)}: login refused for user {endpoint.user}; the image's user is {user}",
                    f"set instances.user to {user} in the recipe",
                )

    def _reconnect(self, endpoint: Endpoint) -> Transport:
        transport, _, secret = self._log_in(endpoint, ANSWER_S)
        if secret is not None:
            close_transport(transport)
            raise SSHException("the host key is not proven yet")
        return transport

    def _secret_to_prove(self, endpoint: Endpoint, host_key: str) -> str | None:
        """Return None for the pinned host key, else the secret by which the instance must prove its key."""
        pinned = self._pins.pinned(endpoint.instance_id)
        if pinned == host_key:
            return None
        if pinned is not None:
            raise HostKeyError(
                f"{label(endpoint)} has another host key than the pinned one; nothing was sent",
                hint=OTHER_KEY_HINT,
            )
        if self._fingerprint:
            if fingerprint(host_key) == self._fingerprint:
                self._pins.pin(endpoint.instance_id, host_key)
                return None
            raise HostKeyError(
                f"{label(endpoint)} has another host key than its tag says; nothing was sent",
                hint=OTHER_KEY_HINT,
            )
        secret = self._secret(endpoint.instance_id)
        if secret is None:
            raise HostKeyError(f"{label(endpoint)}: its host key is not pinned, and no secret can prove it")
        return secret

    def _prove(self, connection: SshConnection, host_key: str, secret: str, wait: "_Wait") -> None:
        """Read the proof, which first boot may not have written yet, and compare it."""
        endpoint = connection.endpoint
        while True:
            answer = connection.run(PROOF_COMMAND, timeout_s=_PROOF_ANSWER_S)
            if answer.exit_status == 0 and answer.stdout.strip():
                break
            if self._closed:
                raise _closed_error(endpoint)
            if not wait.pause():
                raise _NoProofYetError
        if not is_proof(answer.stdout, secret, endpoint.instance_id, host_key):
            raise HostKeyError(
                f"{label(endpoint)} gave a wrong proof of its host key; nothing was sent",
                hint=OTHER_KEY_HINT,
            )

    def _login_key(self) -> Ed25519Key:
        with self._lock:
            if self._key is None:
                self._key = read_key(self._key_path)
            return self._key


class _NoProofYetError(Exception):
    """The deadline passed before first boot wrote the proof."""


class _Wait:
    """Growing pauses until a deadline."""

    def __init__(self, clock: Clock, started: float, wait_s: float) -> None:
        self._clock = clock
        self._started = started
        self._wait_s = wait_s
        self._next_s = _FIRST_PAUSE_S

    def pause(self) -> bool:
        """Wait a little; return False, without waiting, after the deadline."""
        left_s = self.left_s()
        if left_s <= 0:
            return False
        self._clock.sleep(min(self._next_s, left_s))
        self._next_s = min(self._next_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
        return True

    def left_s(self) -> float:
        return self._started + self._wait_s - self._clock.monotonic()

    def duration(self) -> str:
        """Return how long it took, if a wait was asked for."""
        return f", after {self._clock.monotonic() - self._started:.0f} s" if self._wait_s else ""


def _closed_error(endpoint: Endpoint) -> UnreachableError:
    return UnreachableError(f"{label(endpoint)}: abandoned, as the connections were closed")


KEEPALIVE_S = 15
IDLE_WAKE_S = 10.0
"""How often the thread of an idle connection wakes, to keep it alive: a wake takes 0.15 ms of CPU time.

paramiko's own is ten times a second; with a thousand connections, every two seconds took 4 s of CPU a minute.
"""

# Sealed in one go, GCM carries 1.5 times what paramiko's own first choice, CTR with a separate HMAC, does.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_DEFAULT_USER = re.compile(rb'login as the user "([a-z_][a-z0-9_-]{0,31})"')
_LONGEST_LINE = 1024
_LOG_NAME = "dlcloud.ssh.transport"


def read_key(path: Path) -> Ed25519Key:
    """Read the private key for the login.

    Raises:
        StoreError: The file cannot be read, or is not an ed25519 key.
    """
    try:
        return Ed25519Key.from_private_key_file(str(path))
    except (OSError, SSHException, ValueError) as e:
        raise StoreError(f"cannot read the login key {path}: {e}") from e


def exchange_keys(
    endpoint: Endpoint,
    *,
    connect_timeout_s: float,
    answer_timeout_s: float,
    connect: Connect = connect_directly,
) -> tuple[Transport, str]:
    """Connect and exchange keys, without a login.

    Args:
        endpoint: The instance.
        connect_timeout_s: Seconds for the TCP connection.
        answer_timeout_s: Seconds for the banner, and for each later step, the login included.
        connect: Opens the connection to its SSH server.

    Returns:
        The transport, and the host key in base64, which is not proven yet.

    Raises:
        OSError: No TCP connection within `connect_timeout_s`.
        SSHException, EOFError: The server does not speak SSH correctly.
    """
    connected = connect(endpoint, connect_timeout_s)
    transport = None
    try:
        # The proof is of the plain ed25519 key: no other kind, no certificate.
        transport = Transport(connected, disabled_algorithms={"keys": [f"{KEY_TYPE}-cert-v01@openssh.com"]})
        transport.set_log_channel(quiet_log())
        options = transport.get_security_options()
        options.key_types = (KEY_TYPE,)
        options.ciphers = _CIPHERS
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = answer_timeout_s
        transport.start_client(timeout=2 * answer_timeout_s)
        key = transport.get_remote_server_key().get_base64()
    except BaseException as e:
        if transport is not None:
            transport.close()
        connected.close()
        if isinstance(e, (OSError, EOFError, SSHException)) or not isinstance(e, Exception):
            raise
        # paramiko passes on any exception that a malformed answer raised in its thread.
        raise SSHException(f"not an SSH server: {type(e).__name__}") from e
    transport.set_keepalive(KEEPALIVE_S)
    return transport, key


def log_in(transport: Transport, user: str, key: Ed25519Key) -> None:
    """Log in by public key; the signature is bound to this session, so it is of no use elsewhere.

    Raises:
        AuthenticationException: The key is not authorised (yet).
        SSHException, EOFError, OSError: The session broke.
    """
    missing = transport.auth_publickey(user, key)
    if missing:
        raise SSHException(f"the server asks for more than a key: {', '.join(missing)}")
    with contextlib.suppress(OSError, EOFError):  # the connection may be gone
        transport.sock.settimeout(IDLE_WAKE_S)


def ask_default_user(transport: Transport, key: Ed25519Key, *, timeout_s: float) -> str:
    """Return the user that an image gives keys to: the login as root only prints it; empty if it does not.

    Source: cloud-init, cc_ssh with `disable_root`, the default of Ubuntu's, Debian's and Amazon's images.
    """
    try:
        log_in(transport, "root", key)
        channel = transport.open_session(timeout=timeout_s)
        channel.settimeout(timeout_s)
        channel.exec_command("true")
        answer = _DEFAULT_USER.search(channel.makefile("rb").readline(_LONGEST_LINE))
    except (OSError, EOFError, SSHException) as e:
        logging.getLogger(_LOG_NAME).debug("root names no user: %s", e)
        return ""
    return answer[1].decode() if answer else ""


def quiet_log() -> str:
    """Return the name of a log that records paramiko's tracebacks as details; our errors report the rest."""
    logger = logging.getLogger(_LOG_NAME)
    if _lower_to_debug not in logger.filters:
        logger.addFilter(_lower_to_debug)
    return _LOG_NAME


def _lower_to_debug(record: logging.LogRecord) -> bool:
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(_LOG_NAME).isEnabledFor(logging.DEBUG)
