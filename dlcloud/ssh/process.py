"""A running command on an instance: its input, its two output streams and its exit status.

`SshConnection` starts each command as a `RemoteProcess`, which

1. waits for its turn (`Turns`): many threads that start a command at the same time take more processor time
   to wake one another than for the commands, as Python runs one thread at a time and each that waits wakes
   200 times a second;
2. opens a session on one of the connection's `Transports`: OpenSSH limits the sessions of a transport
   (MaxSessions, 10 by default), and counts a command whose channel was closed until its programs have ended,
   so another transport is opened if the server refuses;
3. writes the input from its own thread, while the caller reads both streams.

What must never happen: that a command whose connection is gone is waited for forever, or that one whose
output that is not read blocks the others.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paramiko import Channel, ChannelException, SSHException, Transport

from dlcloud.model.errors import UnreachableError
from dlcloud.model.remote import Endpoint

STARTS, LONGEST_START_S = 16, 5.0
UPLOADS, LONGEST_UPLOAD_S = 16, 60.0
log = logging.getLogger(__name__)
Write = Callable[[bytes], None]
Feed = Callable[[Write], None]
"""Writes a command's standard input in pieces, by calling its argument."""

SIGNALLED = -1
"""Exit status where the server sent none: the command was killed by a signal, or its channel closed."""

_PIECE = 1 << 16
_OPEN_TIMEOUT_S = 60.0
# Fits into the first window that servers grant (2 MiB: OpenSSH, asyncssh), so sending it cannot block.
_SMALL = 1 << 16
# A transport's thread may need this long to end after its channels have been closed.
_THREAD_END_S = 0.2


class RemoteProcess:
    """A command on its own channel. Closing the channel does not end the command's programs.

    Args:
        endpoint: The instance, for messages.
        transports: The logged-in transports.
        turns: Those of all connections to the cluster.
        command: A shell command.
        stdin: All of its input, or a function that writes it.
        timeout_s: Seconds from now until the command must have ended.
        stderr_limit: Keep only this many bytes from the end of stderr.
        on_stderr: Called with stderr as it arrives; then none of it is kept.

    Raises:
        UnreachableError: The session is broken, or the server refuses another channel.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        transports: "Transports",
        turns: "Turns",
        command: str,
        stdin: bytes | Feed = b"",
        timeout_s: float | None = None,
        stderr_limit: int | None = None,
        on_stderr: Write | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._stderr_limit = stderr_limit
        self._on_stderr = on_stderr
        self._feeder: threading.Thread | None = None
        self._is_fed = threading.Event()
        self._feed_error: Exception | None = None
        self.stderr = bytearray()
        self._arrival = _Arrival()
        self._turns = turns
        with turns.start.turn():
            self._transport, self._channel = self._start(transports, command)
            self._send_stdin(stdin)

    @property
    def is_drained(self) -> bool:
        """True if the command has closed both of its streams and all output has been read."""
        channel = self._channel
        closed = channel.closed or channel.eof_received
        return bool(closed) and not (channel.recv_ready() or channel.recv_stderr_ready())

    def read_stdout(self) -> Iterator[bytes]:
        """Yield standard output as it arrives, and collect stderr, until the command closes both.

        Raises:
            UnreachableError: The connection broke, or `timeout_s` passed.
        """
        channel = self._channel
        while True:
            self._arrival.rearm()
            ended = channel.closed or channel.eof_received  # read before draining, so nothing is missed
            while channel.recv_ready():
                yield self._receive(channel.recv)
            while channel.recv_stderr_ready():
                self._keep_stderr(self._receive(channel.recv_stderr))
            if ended:
                return
            if not self._arrival.wait(self._remaining()):
                raise self._timed_out()

    def wait(self) -> int:
        """Wait for the end of the command and return its exit status, -1 if the server sent none.

        Raises:
            UnreachableError: The connection broke before the status came, or `timeout_s` passed.
        """
        if not self._channel.status_event.wait(self._remaining()):
            raise self._timed_out()
        status = self._channel.exit_status
        self.close()
        if self._feed_error is not None:
            raise self._feed_error
        if status == SIGNALLED:
            self._transport.join(_THREAD_END_S)
            if not self._transport.is_active():
                raise self._broken(self._transport.get_exception())
        return status

    def close(self) -> None:
        """Close the channel and stop sending; the command sees its streams closed."""
        self._close_channel()
        if self._feeder is not None and self._is_fed.is_set():
            self._feeder.join()

    def _start(self, transports: "Transports", command: str) -> tuple[Transport, Channel]:
        try:
            timeout_s = min(self._remaining() or _OPEN_TIMEOUT_S, _OPEN_TIMEOUT_S)
            transport, channel = transports.open_session(timeout_s)
            channel.in_buffer.set_event(self._arrival)
            channel.in_stderr_buffer.set_event(self._arrival)
            channel.exec_command(command)
        except (SSHException, OSError, EOFError) as e:
            raise (self._late() if self._remaining() == 0 else self._broken(e)) from e
        return transport, channel

    def _send_stdin(self, stdin: bytes | Feed) -> None:
        """Send input: a little immediately, more in a thread, as the command may write meanwhile."""
        if isinstance(stdin, bytes):
            content = stdin
            if len(content) <= _SMALL:
                self._feed(lambda write: write(content))
                return
            stdin = _feed_of(content)
        feed = self._feed_in_turn
        self._feeder = threading.Thread(target=feed, args=(stdin,), name="dlcloud-stdin", daemon=True)
        self._feeder.start()

    def _feed_in_turn(self, feed: Feed) -> None:
        with self._turns.upload.turn():
            self._is_fed.set()  # before it looks at the channel, which `close` closes before it looks at this
            if not self._channel.closed:
                self._feed(feed)

    def _feed(self, feed: Feed) -> None:
        try:
            feed(self._write)
            with _raise_if_closed():
                self._channel.shutdown_write()
        except StdinClosedError:
            log.debug("%s: the command took no more input", self._endpoint.instance_id)
        except Exception as e:  # noqa: BLE001 raised again by wait(), in the caller's thread
            # An open channel would let the command wait for the rest of its input forever.
            self._feed_error = e
            self._close_channel()

    def _write(self, data: bytes) -> None:
        with _raise_if_closed():
            self._channel.sendall(data)

    def _close_channel(self) -> None:
        with contextlib.suppress(OSError, EOFError, SSHException):  # the connection may be gone
            self._channel.close()

    def _receive(self, receive: Callable[[int], bytes]) -> bytes:
        """Read from the channel, which also asks the server for more: that fails if the server is gone."""
        try:
            return receive(_PIECE)
        except (SSHException, OSError, EOFError) as e:
            close_transport(self._transport)  # its thread may not have noticed yet
            raise self._broken(e) from e

    def _keep_stderr(self, data: bytes) -> None:
        if self._on_stderr is not None:
            self._on_stderr(data)
            return
        self.stderr += data
        if self._stderr_limit is not None and len(self.stderr) > self._stderr_limit:
            del self.stderr[: -self._stderr_limit]

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _timed_out(self) -> UnreachableError:
        self._close_channel()
        return self._late()

    def _late(self) -> UnreachableError:
        return UnreachableError(
            f"{self._endpoint.instance_id}: a command had not ended after {self._timeout_s or 0:.1f} s",
            hint="its programs may still run on the instance",
        )

    def _broken(self, cause: Exception | None) -> UnreachableError:
        return UnreachableError(f"{label(self._endpoint)}: the connection broke: {explain(cause)}")


class StdinClosedError(Exception):
    """The command, or its connection, ended before it had received all of its input."""


class _Arrival(threading.Event):
    """Set when data arrives on either stream.

    paramiko clears the event when it has emptied one stream, which must not hide data on the other.
    """

    def clear(self) -> None:
        """Leave the event set; only `rearm` clears it."""

    def rearm(self) -> None:
        super().clear()


def label(endpoint: Endpoint) -> str:
    """Name an instance with its address."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.instance_id} ({host}:{endpoint.port})"


def explain(cause: BaseException | None) -> str:
    """Describe a foreign exception in a few words; many of paramiko's have no text."""
    if cause is None:
        return "it was closed"
    if isinstance(cause, EOFError):
        return "the server hung up"
    if isinstance(cause, ChannelException):
        return "the server refused a session"
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause) or type(cause).__name__


@contextlib.contextmanager
def _raise_if_closed() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, SSHException) as e:
        raise StdinClosedError from e


def _feed_of(content: bytes) -> Feed:
    def feed(write: Write) -> None:
        for start in range(0, len(content), _PIECE):
            write(content[start : start + _PIECE])

    return feed


class Transports:
    """Opens sessions on the first transport that allows one. Threads may share it.

    Args:
        first: A logged-in transport.
        reconnect: Opens another transport to the same instance.
    """

    def __init__(self, first: Transport, reconnect: Callable[[], Transport]) -> None:
        self._all = [first]
        self._reconnect = reconnect
        self._lock = threading.Lock()
        self._is_closed = False

    def is_active(self) -> bool:
        return any(transport.is_active() for transport in self._all)

    def open_session(self, timeout_s: float) -> tuple[Transport, Channel]:
        """Open a session; the newest transport is tried first.

        Raises:
            OSError, EOFError, SSHException: The connection is broken, or the server allows no session.
            HostKeyError: Another machine answered.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            active = [transport for transport in self._all if transport.is_active()] or self._all[:1]
        for transport in reversed(active):
            try:
                return transport, transport.open_session(timeout=timeout_s)
            except SSHException:
                if not transport.is_active() or time.monotonic() >= deadline:
                    raise
        transport = self._add()
        return transport, transport.open_session(timeout=timeout_s)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            transports = list(self._all)
        for transport in transports:
            close_transport(transport)

    def _add(self) -> Transport:
        transport = self._reconnect()
        with self._lock:
            self._all.append(transport)
            is_closed = self._is_closed
        if is_closed:
            close_transport(transport)
        return transport


def close_transport(transport: Transport) -> None:
    """End a session now: a thread that waits for input would keep its socket open until it wakes."""
    with contextlib.suppress(OSError, EOFError, AttributeError):  # it is closed, or is no socket
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


class Turns:
    """What the connections to one cluster share: turns to start a command, and to send its input."""

    def __init__(self) -> None:
        self.start = Gate(STARTS, LONGEST_START_S)
        self.upload = Gate(UPLOADS, LONGEST_UPLOAD_S)


class Gate:
    """Lets a number of threads through at a time, and more in place of those that stay too long.

    Args:
        limit: The number of threads.
        longest_s: A thread that stays longer waits for an instance that may be gone, and does not count.
    """

    def __init__(self, limit: int, longest_s: float) -> None:
        self._limit = limit
        self._longest_s = longest_s
        self._changed = threading.Condition()
        self._entered: dict[object, float] = {}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and end it with the block."""
        visitor = object()
        with self._changed:
            while (wait_s := self._wait_s()) > 0:
                self._changed.wait(wait_s)
            self._entered[visitor] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._entered[visitor]
                self._changed.notify()

    def _wait_s(self) -> float:
        """Return for how long there is no turn if no thread leaves; 0 where there is one."""
        since = time.monotonic() - self._longest_s
        counted = [entered for entered in self._entered.values() if entered > since]
        return min(counted) - since if len(counted) >= self._limit else 0.0
