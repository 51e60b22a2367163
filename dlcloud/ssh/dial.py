"""Open connections to instances, proving each host key before anything is sent, and keep them for reuse."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dlcloud.model.clock import Clock
from dlcloud.model.errors import HostKeyError, InstanceError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh.connection import SshConnection, is_loopback
from dlcloud.ssh.handshake import ask_default_user, close_transport, exchange_keys, log_in, read_key
from dlcloud.ssh.host_keys import PROOF_COMMAND, KnownHosts, fingerprint, is_proof
from dlcloud.ssh.library import AuthenticationException, Ed25519Key, SSHException, Transport
from dlcloud.ssh.process import explain, label
from dlcloud.ssh.route import Connect, connect_directly
from dlcloud.ssh.transports import Transports
from dlcloud.ssh.turns import Turns

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
_PROOF_ANSWER_S = 15.0
ANSWER_S = 15.0
"""Seconds for an answer of the server; more, up to the longest, if the dial waits longer."""
LONGEST_ANSWER_S = 60.0
OTHER_KEY_HINT = "another machine may answer at this address, or intercept the connection"


@dataclass(slots=True)
class _Slot:
    """The pooled connection to one endpoint; the lock is held while it is being opened."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: SshConnection | None = None


class Dialer:
    """Dials the instances of one cluster; implements `core.remote.Dial`. Threads may share it.

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
        """Return an open connection, a pooled one where there is one; see `core.remote.Dial`."""
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
                raise UnreachableError(f"{failed}{wait.duration()}", getattr(cause, "hint", "")) from cause

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
