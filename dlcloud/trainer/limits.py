"""Limits to the whole time of a connection: a socket's own timeout begins again with every byte.

The ledger's client, the client of the metadata service and the transfer of a state keep them.
"""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping


def request(
    address: str,
    method: str,
    path: str,
    *,
    limit_s: float,
    most_bytes: int,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Send an HTTP request to `HOST:PORT`; return the status and the beginning of the answer.

    Raises:
        OSError: There is no answer in time.
        http.client.HTTPException: The answer is not HTTP.
    """
    connection = http.client.HTTPConnection(address, timeout=limit_s)
    try:
        connection.connect()
        with time_limit(connection.sock, limit_s):
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read(most_bytes)
    finally:
        connection.close()


@contextlib.contextmanager
def time_limit(sock: socket.socket, seconds: float) -> Iterator[None]:
    """End a connection after a time; what reads from it then fails, or finds its end."""

    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
