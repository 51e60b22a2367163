"""Connections that an instance makes: by a program of its own, so with its rights and never the daemon's."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Mapping

from dlcloud.local.instance.addresses import has_many_addresses
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.inside import ADDRESS

_CONNECT_S = 15.0
# Names resolve as they do in the instance; the connected socket goes to the daemon by standard input.
_PROGRAM = """import socket, sys
host, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
    try:
        connected = socket.socket(family, kind, protocol)
        connected.settimeout(10)
        if source and address[0].startswith("127."):
            connected.bind((source, 0))
        connected.connect(address)
    except OSError:
        continue
    socket.send_fds(socket.socket(fileno=0), [b"."], [connected.fileno()])
    break
"""


async def connect_as_instance(
    container: Container, interpreter: str, env: Mapping[str, str], host: str, port: int
) -> socket.socket:
    """Return a connection that a program of the instance has made.

    Raises:
        OSError: It has made none.
    """
    ours, theirs = socket.socketpair()
    try:
        source = ADDRESS if has_many_addresses() else ""
        argv = [interpreter, "-I", "-S", "-c", _PROGRAM, host, str(port), source]
        with theirs:
            process = await container.spawn(
                argv, env=env, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        try:
            await asyncio.wait_for(process.wait(), _CONNECT_S)
        except TimeoutError as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise OSError(f"no connection to {host}:{port} within {_CONNECT_S:.0f} s") from error
        return _receive(ours, f"{host}:{port}")
    finally:
        ours.close()


def _receive(ours: socket.socket, name: str) -> socket.socket:
    """Return the connection that was sent; programs of the instance may have sent anything.

    Raises:
        OSError: It is none.
    """
    ours.setblocking(False)
    try:
        _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
    except BlockingIOError:
        descriptors = []
    if not descriptors:
        raise OSError(f"no connection to {name}")
    connected = socket.socket(fileno=descriptors[0])
    if connected.family not in (socket.AF_INET, socket.AF_INET6) or connected.type != socket.SOCK_STREAM:
        connected.close()
        raise OSError(f"no connection to {name}")
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
