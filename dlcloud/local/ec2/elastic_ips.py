"""Elastic IPs: loopback addresses at which the SSH server of an instance answers beside its own."""

import asyncio
from collections.abc import Mapping

from dlcloud.local.ec2.endings import Entry
from dlcloud.local.instance.addresses import AddressPool
from dlcloud.model.instance import InstanceState

_OPEN_S = 10.0


class ElasticIps:
    """The Elastic IPs of instances. Public methods may be called from any thread but `open`.

    Args:
        addresses: Gives loopback addresses.
        entries: The instances by id.
        loop: The event loop that runs the instances' servers.
    """

    def __init__(
        self, addresses: AddressPool, entries: Mapping[str, Entry], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._addresses = addresses
        self._entries = entries
        self._loop = loop

    def allocate(self) -> str:
        """Return an address that none had before.

        Raises:
            OSError: This machine has one loopback address only.
        """
        return self._addresses.host()

    def move(self, instance_id: str, host: str | None) -> None:
        """Make an address the public one of an instance; None: the instance has its own again.

        Raises:
            OSError: The address cannot be bound.
        """
        entry = self._entries[instance_id]
        entry.record.associate(host)
        if entry.record.state is InstanceState.RUNNING:
            asyncio.run_coroutine_threadsafe(self.open(entry), self._loop).result(_OPEN_S)

    async def open(self, entry: Entry) -> None:
        """Answer at the Elastic IP that an instance has, and at none that it had.

        Raises:
            OSError: The address cannot be bound.
        """
        host, listener = entry.record.elastic_ip, None
        if host is not None:
            listener = self._addresses.bind_ssh(host, entry.instance.listeners.ssh_port)
            listener.admit(entry.record.ssh_sources())
        await entry.instance.answer_at(listener)
