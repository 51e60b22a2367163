"""Which address and interface of this machine its peers reach."""

import socket
import struct
import sys

_SIOCGIFADDR = 0x8915


def address_towards(host: str) -> str:
    """Return the address that packets to a host leave from; nothing is sent.

    Raises:
        OSError: The host has no address, or there is no way to it.
    """
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None where it cannot be told."""
    if sys.platform != "linux":
        return None
    if address.startswith("127."):
        return "lo"
    # Only here: the module is not there on every system.
    import fcntl  # noqa: PLC0415

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
