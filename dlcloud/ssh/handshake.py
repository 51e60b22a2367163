"""From an address to a logged-in transport: the socket, the host key, the login."""

import contextlib
import logging
import re
import socket
from pathlib import Path

from dlcloud.model.errors import StoreError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh.host_keys import KEY_TYPE
from dlcloud.ssh.library import Ed25519Key, SSHException, Transport
from dlcloud.ssh.route import Connect, connect_directly

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


def close_transport(transport: Transport) -> None:
    """End a session now: a thread that waits for input would keep its socket open until it wakes."""
    with contextlib.suppress(OSError, EOFError, AttributeError):  # it is closed, or is no socket
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


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
