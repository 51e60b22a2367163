"""A limit to the whole time of a connection: a socket's own timeout begins again with every byte."""

import contextlib
import socket
import threading
from collections.abc import Iterator


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
