"""All instances of one site: launched, stopped, interrupted and ended, with nothing left behind."""

import asyncio
import contextlib
import errno
import logging
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dlcloud.core.instance import Market
from dlcloud.local.addresses import AddressPool, Listeners, has_many_addresses
from dlcloud.local.capacity import Capacity, Pool
from dlcloud.local.machine import Machine
from dlcloud.local.processes import base_interpreter, end_all
from dlcloud.local.record import End, Record, State
from dlcloud.local.roles import InstanceRoles
from dlcloud.local.state import SitePaths

# What programs get between SIGTERM and SIGKILL when their instance ends.
_GRACE_S = 0.5

log = logging.getLogger(__name__)


class NotRunningError(Exception):
    """The instance is there, and does not run."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """An instance in the books, and its running side."""

    record: Record
    machine: Machine
    boot: asyncio.Task[None] | None = None
    power: asyncio.TimerHandle | None = None
    notice: asyncio.TimerHandle | None = None


class Machines:
    """The instances of one site. Public methods may be called from any thread.

    Args:
        paths: Where the instances' folders lie.
        loop: The event loop that runs the instances' servers.
        boot_delay_s: How long an instance stays `pending`.
        roles: What instances may do by their profiles.
    """

    def __init__(
        self,
        *,
        paths: SitePaths,
        loop: asyncio.AbstractEventLoop,
        boot_delay_s: float,
        roles: InstanceRoles,
    ) -> None:
        self.boot_delay_s = boot_delay_s
        self.minute_s = 60.0
        self.roles = roles
        self.capacity = Capacity(self._occupied)
        # Held by whoever looks at what is left of a pool and then launches into it.
        self.launching = threading.Lock()
        self._paths = paths
        self._loop = loop
        self._addresses = AddressPool(many=has_many_addresses())
        self._interpreter = base_interpreter()
        self._entries: dict[str, _Entry] = {}
        self._closing = False

    def launch(self, records: Sequence[Record]) -> None:
        """Boot instances that are in moto's books now.

        Raises:
            OSError: There is no address for one of them, or the daemon is ending.
        """
        if self._closing:
            raise OSError(errno.ESHUTDOWN, "the local cloud is ending")
        entries = [self._enter(record) for record in records]
        self._entries |= {entry.record.instance_id: entry for entry in entries}
        self._loop.call_soon_threadsafe(self._start_boots, entries)

    def terminate(self, instance_ids: Iterable[str], why: End) -> None:
        """Begin to end instances; those that end already, or are unknown here, are left alone."""
        entries = [
            entry
            for entry in self._known(instance_ids)
            if entry.record.state not in (State.SHUTTING_DOWN, State.TERMINATED)
        ]
        for entry in entries:
            entry.record.explain(why)
            entry.record.show(State.SHUTTING_DOWN)
        self._submit(self._end(entries, why))

    def stop(self, instance_ids: Iterable[str], why: End) -> None:
        """Begin to stop instances; their folders stay."""
        entries = [
            entry
            for entry in self._known(instance_ids)
            if entry.record.state in (State.PENDING, State.RUNNING)
        ]
        for entry in entries:
            entry.record.show(State.STOPPING)
        self._submit(self._stop(entries, why))

    def start(self, instance_ids: Iterable[str]) -> None:
        """Begin to start stopped instances, each on an address of its own again."""
        entries = [entry for entry in self._known(instance_ids) if entry.record.state is State.STOPPED]
        for entry in entries:
            listeners = self._addresses.take()
            entry.record.restart()
            entry.record.set_address(listeners.host, listeners.ssh_port)
            self._loop.call_soon_threadsafe(self._start_again, entry, listeners)

    def interrupt(self, instance_id: str, *, grace_s: float, rebalance: bool) -> bool:
        """Announce the end of an instance and end it after the grace; False if none such runs."""
        entry = self._entries.get(instance_id)
        if entry is None or entry.record.state not in (State.PENDING, State.RUNNING):
            return False
        now = datetime.now(UTC)
        if rebalance:
            entry.machine.notices.rebalance_at = now
        else:
            entry.machine.notices.ends_at = now + timedelta(seconds=grace_s)
            self._loop.call_soon_threadsafe(self._end_later, entry, grace_s)
        return True

    def zone(self, instance_id: str) -> str:
        """Return the Availability Zone of an instance.

        Raises:
            KeyError: There is none of this id.
        """
        return self._entries[instance_id].record.pool.zone

    def admit_key(self, instance_id: str, public_key: str, *, seconds: float) -> None:
        """Let the holder of a key log in to an instance for a while.

        Raises:
            KeyError: There is none of this id.
            NotRunningError: It does not run.
            ValueError: It is no public key.
        """
        entry = self._entries[instance_id]
        running = entry.record.state is State.RUNNING
        if not (running and entry.machine.admit_key(public_key, seconds=seconds)):
            raise NotRunningError(f"{instance_id} is {entry.record.state.value[0]}, not running")

    def shrink_to_capacity(self, instance_type: str, zone: str | None, count: int, grace_s: float) -> None:
        """Interrupt the youngest spot instances of a type beyond a limit."""
        living = [
            entry
            for entry in list(self._entries.values())
            if entry.record.is_living
            and entry.machine.notices.ends_at is None
            and entry.record.pool.instance_type == instance_type
            and zone in (None, entry.record.pool.zone)
        ]
        excess = max(0, len(living) - count)
        spot = (
            (entry.record.launched_at, entry.record.instance_id) for entry in living if entry.record.is_spot
        )
        for _, instance_id in sorted(spot, reverse=True)[:excess]:
            self.interrupt(instance_id, grace_s=grace_s, rebalance=False)

    def forget(self, before: datetime) -> set[str]:
        """Drop the entries of instances that ended before a moment; returns their ids."""
        ended = {
            instance_id
            for instance_id, entry in list(self._entries.items())
            if entry.record.ended_at is not None and entry.record.ended_at < before
        }
        for instance_id in ended:
            del self._entries[instance_id]
        return ended

    def report(self) -> list[dict[str, object]]:
        """Return the instances as plain values, for the status page."""
        return [
            {
                "instance_id": entry.record.instance_id,
                "instance_type": entry.record.pool.instance_type,
                "zone": entry.record.pool.zone,
                "state": entry.record.state.value[0],
                "spot": entry.record.is_spot,
                "host": entry.machine.host,
                "ssh_port": entry.machine.ssh_port,
                "metadata_port": entry.machine.metadata_port,
                "launched_at": entry.record.launched_at.isoformat(),
                "folder": str(entry.machine.root),
            }
            for entry in list(self._entries.values())
            if entry.record.state is not State.TERMINATED
        ]

    async def close(self) -> None:
        """End every instance and wait for it; nothing is launched any more."""
        self._closing = True
        entries = [entry for entry in self._entries.values() if entry.record.state is not State.TERMINATED]
        await self._end(entries, End.USER)
        await end_all([entry.machine.root for entry in self._entries.values()], grace_s=0.0)

    def living(self) -> list[tuple[str, Market]]:
        """Return the type and market of each instance that counts against the account's quotas."""
        return [
            (
                entry.record.pool.instance_type,
                Market.SPOT if entry.record.is_spot else Market.ON_DEMAND,
            )
            for entry in list(self._entries.values())
            if entry.record.state in (State.PENDING, State.RUNNING)
        ]

    def _occupied(self) -> list[Pool]:
        return [entry.record.pool for entry in list(self._entries.values()) if entry.record.is_living]

    def _known(self, instance_ids: Iterable[str]) -> list[_Entry]:
        return [self._entries[each] for each in instance_ids if each in self._entries]

    def _enter(self, record: Record) -> _Entry:
        instance_id = record.instance_id
        listeners = self._addresses.take()
        record.set_address(listeners.host, listeners.ssh_port)
        machine = Machine(
            identity=record.identity(),
            root=self._paths.instances / instance_id,
            cache=self._paths.cache,
            listeners=listeners,
            interpreter=self._interpreter,
            tags=record.tags,
            iam=lambda: self.roles.documents(instance_id, record.profile()),
            minute_s=self.minute_s,
            power=lambda order: self._order(instance_id, order),
        )
        return _Entry(record=record, machine=machine)

    def _start_boots(self, entries: list[_Entry]) -> None:
        for entry in entries:
            name = f"boot {entry.record.instance_id}"
            entry.boot = self._loop.create_task(self._boot(entry, entry.machine.boot), name=name)

    def _start_again(self, entry: _Entry, listeners: Listeners) -> None:
        booting = self._boot(entry, lambda: entry.machine.boot_again(listeners))
        entry.boot = self._loop.create_task(booting, name=f"boot {entry.record.instance_id}")

    async def _boot(self, entry: _Entry, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Boot for at least the boot delay; a boot that fails ends the instance, as on EC2."""
        try:
            await asyncio.gather(asyncio.sleep(self.boot_delay_s), begin())
        except Exception:
            log.exception("%s could not boot", entry.record.instance_id)
            entry.boot = None
            self.terminate([entry.record.instance_id], End.BOOT)
            return
        if entry.record.state is State.PENDING:
            entry.record.show(State.RUNNING)
            log.info("%s runs at %s", entry.record.instance_id, entry.machine.host)

    async def _end(self, entries: list[_Entry], why: End) -> None:
        if not entries:
            return
        await self._halt(entries)
        await asyncio.to_thread(_remove_folders, entries)
        # A session that was just starting may have slipped through; without its folder none can any more.
        await end_all([entry.machine.root for entry in entries], grace_s=0.0)
        for entry in entries:
            if entry.record.state is not State.TERMINATED:
                entry.record.end(why)
                log.info("%s is terminated: %s", entry.record.instance_id, why.value[0])

    async def _stop(self, entries: list[_Entry], why: End) -> None:
        await self._halt(entries)
        for entry in entries:
            if entry.record.state is State.STOPPING:
                entry.record.stop(why)

    async def _halt(self, entries: list[_Entry]) -> None:
        """Bring instances down: no new logins, programs end, connections are cut, stragglers too."""
        roots = [entry.machine.root for entry in entries]
        await asyncio.gather(*(self._quiet(entry) for entry in entries))
        await end_all(roots, grace_s=_GRACE_S)
        await asyncio.gather(*(entry.machine.close() for entry in entries))
        await end_all(roots, grace_s=0.0)

    async def _quiet(self, entry: _Entry) -> None:
        for timer in (entry.power, entry.notice):
            if timer is not None:
                timer.cancel()
        if entry.boot is not None and not entry.boot.done():
            entry.boot.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await entry.boot
        await entry.machine.refuse()

    def _end_later(self, entry: _Entry, grace_s: float) -> None:
        if entry.notice is not None:
            entry.notice.cancel()
        instance_id = entry.record.instance_id
        entry.notice = self._loop.call_later(grace_s, self.terminate, [instance_id], End.SPOT)

    def _order(self, instance_id: str, order: str) -> None:
        """Carry out an order of an instance's shutdown program: a delay in seconds, cancel, or reboot."""
        entry = self._entries[instance_id]
        if entry.power is not None:
            entry.power.cancel()
            entry.power = None
        if order not in ("cancel", "reboot"):
            entry.power = self._loop.call_later(max(0.0, float(order)), self._shut_down, entry)

    def _shut_down(self, entry: _Entry) -> None:
        act = self.terminate if entry.record.ends_at_shutdown else self.stop
        act([entry.record.instance_id], End.ITSELF)

    def _submit(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on the loop; what it raises is logged, for nobody awaits it."""
        if self._closing:
            work.close()
            return
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_failure)


def _remove_folders(entries: list[_Entry]) -> None:
    for entry in entries:
        entry.machine.remove()


def _log_failure(done: "Future[None]") -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("an instance could not be brought down", exc_info=error)


async def clear_left_behind(paths: SitePaths) -> None:
    """End processes and remove folders that a killed daemon left behind."""
    roots = list(paths.instances.iterdir()) if paths.instances.is_dir() else []
    if roots:
        log.warning("clearing %d instances that a daemon before this one left behind", len(roots))
        await end_all(roots, grace_s=0.0)
    await asyncio.to_thread(shutil.rmtree, paths.instances, ignore_errors=True)
    paths.instances.mkdir(mode=0o700, exist_ok=True)
    paths.cache.mkdir(mode=0o700, exist_ok=True)
