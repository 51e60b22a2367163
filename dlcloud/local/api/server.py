"""A threaded HTTP/1.1 server: keep-alive, no delay, no name look-ups, and bounds on all that a client sends.

Usual development servers (wsgiref, werkzeug) close every connection after one reply. Connections of other
users are closed before they get a thread; of each kind of client a number of them is served, and one that
hangs makes room.
"""

import contextlib
import io
import logging
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, cast
from urllib.parse import unquote
from wsgiref.util import setup_testing_defaults

from dlcloud.local.api.call import NO_ANSWER, Reply
from dlcloud.local.instance.peers import NoUser, is_refused_peer, peer_user

MOST_CONNECTIONS = 256
"""Open connections of one kind of client: the daemon's user with root, or all instances together."""
IDLE_S = 75.0
"""How long a connection may wait for its next request."""
GRACE_S = 30.0
LEAST_BYTES_PER_S = 32 * 1024
"""A request or a reply may take the grace, and its length at this rate."""
_PIECE = 1 << 16


@dataclass(eq=False, kw_only=True)
class Connections:
    """The open connections. Methods may be called from any thread.

    Beyond the limit of its kind, a new connection takes the place of the one whose client has kept a thread
    waiting for the longest time; where no thread waits, it is refused.
    """

    most: int = MOST_CONNECTIONS
    _waiting: dict[socket.socket, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, connection: socket.socket, kind: str) -> bool:
        """Count a new connection; False if it is one too many."""
        with self._lock:
            others = [one for one, (its_kind, _) in self._waiting.items() if its_kind == kind]
            if len(others) >= self.most:
                longest = min(others, key=lambda one: self._waiting[one][1])
                if self._waiting[longest][1] == float("inf"):
                    return False
                del self._waiting[longest]
                with contextlib.suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)
            self._waiting[connection] = (kind, time.monotonic())
            return True

    def wait(self, connection: socket.socket) -> None:
        """Note that a client has just sent something, and is waited for."""
        self._note(connection, time.monotonic())

    def work(self, connection: socket.socket) -> None:
        """Note that a client is not waited for, until the next call of `wait`."""
        self._note(connection, float("inf"))

    def leave(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._waiting.pop(connection, None)

    def _note(self, connection: socket.socket, since: float) -> None:
        with self._lock:
            if connection in self._waiting:
                self._waiting[connection] = (self._waiting[connection][0], since)


class PacedSocket(io.RawIOBase):
    """Reads and writes a connection, whose client must keep a least rate.

    Args:
        connection: The connection.
        on_bytes: Called when the client has sent something.
    """

    def __init__(self, connection: socket.socket, on_bytes: Callable[[], None]) -> None:
        super().__init__()
        self._connection = connection
        self._on_bytes = on_bytes
        self._begin: float | None = None
        self._moved = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def rest(self) -> None:
        """Wait for a next request, which has not begun."""
        self._begin = None

    def begin(self) -> None:
        """Measure from now on: a request, or a reply."""
        self._begin, self._moved = time.monotonic(), 0

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        self._connection.settimeout(self._left_s())
        count = self._connection.recv_into(buffer)
        if self._begin is None:
            self.begin()
        self._moved += count
        self._on_bytes()
        return count

    def write(self, content: "bytes | memoryview") -> int:  # type: ignore[override]
        self._connection.settimeout(self._left_s())
        count = self._connection.send(memoryview(content)[:_PIECE])
        self._moved += count
        return count

    def _left_s(self) -> float:
        if self._begin is None:
            return IDLE_S
        left = self._begin + GRACE_S + self._moved / LEAST_BYTES_PER_S - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        return left


_BACKLOG = 512
TUNNEL_PATH = "/openTunnel"
MOST_UNSIGNED = 1024 * 1024
"""The most bytes of a body that are read before it is known that the caller may send more."""

_MOST_LINE, _MOST_TRAILERS = 4096, 16
"""Bytes of a line between the chunks of a body, and lines behind them."""
_LENGTH = re.compile(r"[0-9]{1,18}")
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")

log = logging.getLogger(__name__)


class HttpServer(socketserver.ThreadingTCPServer):
    """Serves on a loopback port until `shutdown`; a thread per connection, none of them waited for.

    Args:
        answer: Answers a request, given as WSGI's environment.
        allow_body: Returns how large a body may be by the headers of its request, or why it is refused.
        instance_users: The user ids of instances' programs.
        open_tunnel: Serves a request for a tunnel, its line and headers also as they were sent, to its end.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _BACKLOG

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Reply],
        allow_body: Callable[[dict[str, Any]], int | Reply],
        instance_users: range,
        open_tunnel: Callable[[dict[str, Any], bytes, socket.socket], None],
    ) -> None:
        self.answer = answer
        self.allow_body = allow_body
        self.connections = Connections()
        self.open_tunnel = open_tunnel
        self.instance_users = instance_users
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def port(self) -> int:
        """Return the port that the system chose."""
        return int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401 - socketserver's types
        """Refuse the connections of other users immediately: they must not hold a thread."""
        with contextlib.suppress(OSError):  # it is closed already
            if not is_refused_peer(client_address, request.getsockname(), self.instance_users):
                return True
        _refuse(request, HTTPStatus.FORBIDDEN, "the local EC2 belongs to another user of this machine")
        return False

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - http.server's
        """Log an exception of a connection; a client that left is no error."""
        error = sys.exc_info()[1]
        level = logging.DEBUG if isinstance(error, (ConnectionError, TimeoutError)) else logging.ERROR
        log.log(level, "a connection of %s broke: %r", client_address, error, exc_info=level == logging.ERROR)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: HttpServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request of any method."""
        if self.path.partition("?")[0] == TUNNEL_PATH:
            self._open_tunnel()
            return
        body = self._read_body()
        if body is None:
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self.server.connections.work(self.connection)
        reply = body if isinstance(body, Reply) else self.server.answer(self._environ(body))
        if reply.status == NO_ANSWER:
            self.close_connection = True
            return
        self._paced.begin()
        self._send(reply)
        self._paced.rest()
        self.server.connections.wait(self.connection)

    def _send(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        self.send_header("Date", self.date_time_string())  # by which clients see that their clock is wrong
        for name, value in reply.headers:
            if name.lower() not in ("content-length", "connection", "date", "server"):
                self.send_header(name, value)
        lengths = [value for name, value in reply.headers if name.lower() == "content-length"]
        is_head = self.command == "HEAD" and bool(lengths)
        self.send_header("Content-Length", lengths[0] if is_head else str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Let the client send its body, which it holds back until it has read this answer."""
        is_expected = super().handle_expect_100()
        self.wfile.flush()
        return is_expected

    def setup(self) -> None:
        """Count the connection, and read and write it at a least rate."""
        super().setup()
        connections, connection = self.server.connections, self.connection
        self._paced = PacedSocket(connection, lambda: connections.wait(connection))
        for file in (self.rfile, self.wfile):
            file.close()
        self.rfile = io.BufferedReader(self._paced, _PIECE)
        self.wfile = io.BufferedWriter(cast("io.RawIOBase", self._paced), _PIECE)  # one write per reply

    def handle(self) -> None:
        """Answer the requests of the connection, unless it is one too many."""
        ends = (self.client_address, self.connection.getsockname())
        user = peer_user(*ends)
        is_instance = not isinstance(user, NoUser) and user in self.server.instance_users
        if not self.server.connections.admit(self.connection, "instances" if is_instance else "owner"):
            _refuse(self.connection, HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            return
        try:
            super().handle()
        finally:
            self.server.connections.leave(self.connection)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

    def _open_tunnel(self) -> None:
        """Hand the connection to the endpoint that its request names, until the tunnel ends."""
        self.close_connection = True
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        raw = f"{self.requestline}\r\n{headers}\r\n".encode("latin-1")
        self.server.open_tunnel(self._environ(b""), raw, self.connection)

    def _read_body(self) -> bytes | Reply | None:
        """Return the body; None if it is broken or too large; a reply if the headers are refused."""
        is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        text = self.headers.get("Content-Length") or "0"
        if not _LENGTH.fullmatch(text):
            return None
        length, limit = int(text), MOST_UNSIGNED
        if is_chunked or length > limit:
            allowed = self.server.allow_body(self._environ(b""))
            if isinstance(allowed, Reply):
                self.close_connection = True
                return allowed
            limit = allowed
        if is_chunked:
            return self._read_chunks(limit) if limit > MOST_UNSIGNED else None
        if length > limit:
            return None
        body = self.rfile.read(length)
        # A client that left in the middle gets nothing done.
        return body if len(body) == length else None

    def _read_chunks(self, limit: int) -> bytes | None:
        """Return a body in HTTP's chunks; None if it is larger than the limit, or broken."""
        body = bytearray()
        while len(body) <= limit:
            size = self.rfile.readline(_MOST_LINE).partition(b";")[0].strip()
            if not _HEXADECIMAL.fullmatch(size):
                return None
            if int(size, 16) == 0:
                trailers = (self.rfile.readline(_MOST_LINE).strip() for _ in range(_MOST_TRAILERS))
                return bytes(body) if not all(trailers) else None
            if len(body) + int(size, 16) > limit:
                return None
            body += self.rfile.read(int(size, 16))
            if self.rfile.readline(_MOST_LINE).strip():
                return None
        return None

    def address_string(self) -> str:
        """Return the client's address without asking for its name."""
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives
        """Log requests for diagnosis only."""
        log.debug(format, *args)

    def _environ(self, body: bytes) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query,
            "RAW_URI": self.path,
            "HTTP_HOST": "",
            "SERVER_PORT": str(self.server.port),
            "REMOTE_ADDR": self.client_address[0],
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            "wsgi.multithread": True,
        }
        setup_testing_defaults(environ)  # the variables of PEP 3333 that no request changes
        for name, value in self.headers.items():
            if "_" in name:
                continue  # it would stand for the header with a dash
            key = "HTTP_" + name.upper().replace("-", "_")
            environ[key] = f"{environ[key]},{value}" if environ.get(key) else value
        return environ


def _refuse(connection: socket.socket, status: HTTPStatus, message: str) -> None:
    """Answer whatever comes by an error, without waiting for it."""
    head = f"HTTP/1.1 {status.value} {message}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(head.encode())
