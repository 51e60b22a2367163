"""Open connections to instances, proving each host key before anything is sent, and keep them for reuse."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paramiko import AuthenticationException, Ed25519Key, SSHException

from dlcloud.core.errors import HostKeyError, UnreachableError
from dlcloud.core.remote import Endpoint
from dlcloud.ssh.connection import SshConnection, is_loopback
from dlcloud.ssh.handshake import log_in, read_key, shake_hands
from dlcloud.ssh.hostproof import PROOF_COMMAND, fingerprint, proves
from dlcloud.ssh.known_hosts import KnownHosts
from dlcloud.ssh.process import named, reason

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
_PROOF_ANSWER_S = 15.0


class Clock(Protocol):
    """The part of `core.ports.Clock` that waiting needs."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


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
        secret: Gives an instance's one-time secret, or None where only a pinned key may be accepted.
        clock: Waits between attempts.
        fingerprint: Of the host key of the one instance that is dialled, where one was proven before.
        loopback_only: Refuse every address but this machine's own, before connecting (the local EC2).
        connect_timeout_s: Seconds for one TCP connection; short, as a lost SYN is repeated ever more rarely.
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
    ) -> None:
        self._key_path = key_path
        self._key: Ed25519Key | None = None
        self._pins = KnownHosts(known_hosts)
        self._secret = secret
        self._clock = clock
        self._fingerprint = fingerprint
        self._loopback_only = loopback_only
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._slots: dict[Endpoint, _Slot] = {}
        self._closed = False

    def dial(self, endpoint: Endpoint, *, wait_s: float = 0.0) -> SshConnection:
        """Return an open connection, a pooled one where there is one; see `core.remote.Dial`."""
        if self._loopback_only and not is_loopback(endpoint.host):
            raise UnreachableError(
                f"{named(endpoint)}: the local EC2 has loopback addresses only; not connecting"
            )
        started = self._clock.monotonic()  # before the wait for another thread that dials the same instance
        with self._lock:
            slot = self._slots.setdefault(endpoint, _Slot())
        with slot.lock:
            if slot.connection is None or not slot.connection.alive:
                slot.connection = self._open(endpoint, _Wait(self._clock, started, wait_s))
            if self._closed:
                slot.connection.close()
                raise _is_closed(endpoint)
            return slot.connection

    def close(self) -> None:
        """Close every pooled connection; dials under way give up at their next attempt."""
        self._closed = True
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()

    def _open(self, endpoint: Endpoint, wait: "_Wait") -> SshConnection:
        """Try until the deadline; a wrong host key ends it at once."""
        cause: Exception
        while True:
            if self._closed:
                raise _is_closed(endpoint)
            try:
                return self._attempt(endpoint, wait)
            except _NoProofYetError as e:
                # Not a wrong proof: the instance is still in its first boot, and may be dialled again.
                raise UnreachableError(
                    f"{named(endpoint)} has not proven its host key{wait.told()}: no proof written",
                    hint="user data still runs, or failed: see /var/log/cloud-init-output.log there",
                ) from e
            except AuthenticationException as e:
                failed, cause = f"{named(endpoint)}: login refused for user {endpoint.user}", e
            except (OSError, EOFError, SSHException, UnreachableError) as e:
                failed, cause = f"{named(endpoint)}: no SSH connection: {reason(e)}", e
            log.debug("%s", failed)
            if not wait.pause():
                raise UnreachableError(f"{failed}{wait.told()}") from cause

    def _attempt(self, endpoint: Endpoint, wait: "_Wait") -> SshConnection:
        transport, host_key = shake_hands(endpoint, connect_timeout_s=self._connect_timeout_s)
        try:
            secret = self._may_log_in(endpoint, host_key)
            log_in(transport, endpoint.user, self._login_key())
            connection = SshConnection(endpoint=endpoint, transport=transport)
            if secret is not None:
                self._prove(connection, host_key, secret, wait)
                self._pins.pin(endpoint.instance_id, host_key)
        except BaseException:
            transport.close()
            raise
        return connection

    def _may_log_in(self, endpoint: Endpoint, host_key: str) -> str | None:
        """Return None where the host key is the pinned one, else the secret that must still prove it."""
        pinned = self._pins.pinned(endpoint.instance_id)
        if pinned == host_key:
            return None
        if pinned is not None:
            raise HostKeyError(
                f"{named(endpoint)} shows another host key than the one pinned for it; nothing was sent",
                hint="another machine answers at this address, or someone stands in between",
            )
        if self._fingerprint:
            if fingerprint(host_key) == self._fingerprint:
                self._pins.pin(endpoint.instance_id, host_key)
                return None
            raise HostKeyError(
                f"{named(endpoint)} shows another host key than the one its tag tells of; nothing was sent",
                hint="another machine answers at this address, or someone stands in between",
            )
        secret = self._secret(endpoint.instance_id)
        if secret is None:
            raise HostKeyError(f"{named(endpoint)}: its host key is not pinned, and nothing can prove it")
        return secret

    def _prove(self, connection: SshConnection, host_key: str, secret: str, wait: "_Wait") -> None:
        """Read the proof, which first boot may not have written yet, and compare it."""
        endpoint = connection.endpoint
        while True:
            shown = connection.run(PROOF_COMMAND, timeout_s=_PROOF_ANSWER_S)
            if shown.exit_status == 0 and shown.stdout.strip():
                break
            if self._closed:
                raise _is_closed(endpoint)
            if not wait.pause():
                raise _NoProofYetError
        if not proves(shown.stdout, secret, endpoint.instance_id, host_key):
            raise HostKeyError(
                f"{named(endpoint)} shows a wrong proof of its host key; nothing was sent",
                hint="someone may stand between here and the instance",
            )

    def _login_key(self) -> Ed25519Key:
        with self._lock:
            if self._key is None:
                self._key = read_key(self._key_path)
            return self._key


class _NoProofYetError(Exception):
    """The deadline has passed before first boot wrote the proof."""


class _Wait:
    """Growing pauses until a deadline."""

    def __init__(self, clock: Clock, started: float, wait_s: float) -> None:
        self._clock = clock
        self._started = started
        self._wait_s = wait_s
        self._next_s = _FIRST_PAUSE_S

    def pause(self) -> bool:
        """Wait a little; return False, at once, when the deadline has passed."""
        left = self._started + self._wait_s - self._clock.monotonic()
        if left <= 0:
            return False
        self._clock.sleep(min(self._next_s, left))
        self._next_s = min(self._next_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
        return True

    def told(self) -> str:
        """Say how long it took, where it was meant to take long."""
        return f", after {self._clock.monotonic() - self._started:.0f} s" if self._wait_s else ""


def _is_closed(endpoint: Endpoint) -> UnreachableError:
    return UnreachableError(f"{named(endpoint)}: given up, as the connections were closed")
