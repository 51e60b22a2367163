"""The inside of the local EC2's networks: the way of endpoints and bastions to private instances.

All instances have loopback addresses, which every program of this machine could reach: what comes from inside
has an address of its own, which the security groups of an instance without a public address let in.
"""

import asyncio
import contextlib
import socket
from ipaddress import IPv4Network
from typing import Any

import asyncssh

from dlcloud.local.instance.addresses import has_many_addresses
from dlcloud.local.instance.firewall import Sources

ADDRESS = "127.0.0.2"
"""The address from which endpoints and bastions connect."""
_TIMEOUT_S = 10.0
_PIECE = 1 << 16


def inside_sources(sources: Sources, vpc_cidr: str) -> Sources:
    """Return from where connections reach an instance that has no public address.

    What a rule lets in from its VPC comes from `ADDRESS` here. Where the system has one loopback address
    (macOS), what is outside cannot be distinguished.
    """
    vpc = IPv4Network(vpc_cidr)
    inside = (IPv4Network(ADDRESS),) if has_many_addresses() else (IPv4Network("127.0.0.1"),)
    is_open = any(network.overlaps(vpc) for network in sources.networks)
    return Sources(networks=inside if is_open else (), instances=sources.instances)


def connect_inside(host: str, port: int) -> socket.socket:
    """Connect to an instance from inside."""
    source = (ADDRESS, 0) if has_many_addresses() else None
    connected = socket.create_connection((host, port), timeout=_TIMEOUT_S, source_address=source)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.settimeout(None)
    return connected


async def carry(
    connected: socket.socket, reader: "asyncssh.SSHReader[bytes]", writer: "asyncssh.SSHWriter[bytes]"
) -> None:
    """Carry bytes between a connection and a client's channel until either ends."""
    far_reader, far_writer = await asyncio.open_connection(sock=connected)
    copies = [_copy(reader, far_writer), _copy(far_reader, writer)]
    tasks = [asyncio.ensure_future(copy) for copy in copies]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    far_writer.close()
    writer.close()


async def _copy(reader: Any, writer: Any) -> None:  # noqa: ANN401  asyncio's streams or asyncssh's
    with contextlib.suppress(OSError, asyncssh.Error):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
