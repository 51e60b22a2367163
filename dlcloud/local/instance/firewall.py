"""The security groups of an instance at its SSH port: connections from other sources time out, as on EC2."""

import ctypes
import ipaddress
import logging
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlcloud.local.instance.peers import NoUser, peer_user
from dlcloud.model.instance import SSH_PORT

GROUP_ACTIONS = frozenset(
    {
        "AuthorizeSecurityGroupIngress",
        "ModifyInstanceAttribute",
        "ModifyManagedPrefixList",
        "ModifySecurityGroupRules",
        "RevokeSecurityGroupIngress",
    }
)
"""Actions that change what reaches an instance."""

_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")
_HELD = 64
# Source: Linux, include/uapi/linux/filter.h and bpf_common.h; asm-generic/socket.h.
_SO_ATTACH_FILTER = 26
_SOURCE_ADDRESS = 0xFFF00000 + 12  # SKF_NET_OFF: from the IP header on
_LOAD, _SAVE, _RESTORE, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x02, 0x60, 0x54, 0x15, 0x06
_WHOLE = 0xFFFFFFFF
_MOST_NETWORKS = 1000  # a program has at most 4,096 instructions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """From where the security groups let connections reach port 22.

    Args:
        networks: The networks of their rules.
        instances: A rule names a group, so that instances get through.
    """

    networks: tuple[ipaddress.IPv4Network, ...] = ()
    instances: bool = False

    def admits(self, host: str) -> bool:
        """True if a rule covers an address."""
        address = ipaddress.IPv4Address(host)
        return any(address in network for network in self.networks)


NOWHERE = Sources()


def ssh_sources(groups: Iterable[Any]) -> Sources:
    """Return the sources that moto's security groups allow together."""
    rules = [rule for group in groups for rule in list(group.ingress_rules) if _is_of_ssh(rule)]
    networks = [ipaddress.IPv4Network(rule.cidr_ipv4, strict=False) for rule in rules if rule.cidr_ipv4]
    for rule in rules:
        networks += _listed_networks(rule)
    return Sources(networks=tuple(networks), instances=any(rule.source_group for rule in rules))


def _is_of_ssh(rule: Any) -> bool:  # noqa: ANN401 - moto's object
    if rule.ip_protocol == "tcp":
        return bool(rule.from_port <= SSH_PORT <= rule.to_port)
    return bool(rule.ip_protocol == "-1")


def _listed_networks(rule: Any) -> list[ipaddress.IPv4Network]:  # noqa: ANN401 - moto's object
    """Return the networks of a rule's prefix list."""
    listed = rule.ec2_backend.managed_prefix_lists.get(rule.prefix_list_id)
    if listed is None or listed.address_family != "IPv4":
        return []
    return [ipaddress.IPv4Network(entry["Cidr"]) for entry in listed.entries.get(listed.version) or ()]


class GuardedListener(socket.socket):
    """A listening socket that answers connections from admitted sources only.

    The kernel drops the packets that ask for other connections, by a filter on the socket (Linux). What it
    cannot tell apart is held open and never answered: on other systems all of them, and where a rule admits
    instances, those of this machine's own programs.
    """

    def __init__(self, instance_users: range) -> None:
        """Admit nothing yet.

        Args:
            instance_users: The user ids of instances' programs.
        """
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._instance_users = instance_users
        self._held: deque[socket.socket] = deque(maxlen=_HELD)
        self.admit(NOWHERE)

    def admit(self, sources: Sources) -> None:
        """Admit other sources from now on; connections that are open stay."""
        self._sources = sources
        if self.fileno() < 0:
            return
        passed = (*sources.networks, _LOOPBACK) if sources.instances else sources.networks
        if sys.platform == "linux":
            try:
                _attach_filter(self, passed[:_MOST_NETWORKS])
            except OSError as error:
                log.warning("connections to port 22 are held instead of dropped: %s", error)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            BlockingIOError: There is none, or its source is not admitted.
        """
        connection, address = super().accept()
        if self._admits(connection, address):
            return connection, address
        self._held.append(connection)
        raise BlockingIOError

    def close(self) -> None:
        super().close()
        self._held.clear()

    def _admits(self, connection: socket.socket, address: tuple[str, int]) -> bool:
        if self._sources.admits(address[0]):
            return True
        if not self._sources.instances:
            return False
        user = peer_user(address, connection.getsockname())
        return user is NoUser.NOT_REPORTED or user in self._instance_users


def _attach_filter(listener: socket.socket, networks: Iterable[ipaddress.IPv4Network]) -> None:
    """Let the kernel drop packets to a socket from other networks than these.

    Accepted connections keep the filter that was there when they came.

    Raises:
        OSError: The system does not do it.
    """
    program = [(_LOAD, 0, 0, _SOURCE_ADDRESS), (_SAVE, 0, 0, 0)]
    for network in networks:
        program += [
            (_RESTORE, 0, 0, 0),
            (_AND, 0, 0, int(network.netmask)),
            (_JUMP_IF_EQUAL, 0, 1, int(network.network_address)),
            (_RETURN, 0, 0, _WHOLE),
        ]
    program.append((_RETURN, 0, 0, 0))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code))
    )
