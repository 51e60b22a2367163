"""All instances of one site: launched, interrupted and terminated, with nothing left behind.

`launch.py` makes instances in moto and calls `SiteInstances.launch`, which binds their addresses and boots
them on the event loop. They end by TerminateInstances, an interruption notice, their own shutdown, or the
end of the daemon, and always in the same order: logins are cut, programs are asked to end and then killed,
namespaces are dropped, the folder is removed, and only then moto shows `terminated`. A step that fails is
tried again: no instance may stay in `shutting-down`, and none may be shown as terminated while its programs
run.
"""

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial, reduce
from itertools import count
from operator import or_
from typing import Any

from dlcloud.local.capacity.pools import Capacity, is_in
from dlcloud.local.capacity.reservations import LocalReservations
from dlcloud.local.capacity.spot_market import SpotMarket
from dlcloud.local.ec2.record import InstanceRecord, StateReason
from dlcloud.local.instance.addresses import AddressPool, has_many_addresses
from dlcloud.local.instance.isolation import UNISOLATED, Isolation, share_cache
from dlcloud.local.instance.local_instance import LocalInstance
from dlcloud.local.instance.processes import Marks, ask_to_end, end_all
from dlcloud.local.instance.rootfs import hosts_line
from dlcloud.local.site_files import SitePaths
from dlcloud.local.tree.copies import images_folder, make_image
from dlcloud.local.tree.instance_tree import remove_tree
from dlcloud.model.instance import InstanceState, Market


class BootFault(StrEnum):
    """What becomes of an instance that does not boot.

    ENDS: EC2 terminates it while it is pending. NO_KEY: so it does, as EC2 may not use the disk's KMS key.
    SILENT: it runs, and SSH never answers.
    """

    ENDS = "ends"
    NO_KEY = "no-key"
    SILENT = "silent"


class Boots:
    """Which boots of one site fail. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[BootFault] = []

    def fail_next(self, fault: BootFault, count: int) -> None:
        """Let the next boots fail."""
        with self._lock:
            self._faults += [fault] * count

    def next_fault(self) -> BootFault | None:
        """Return what becomes of the next boot; None: it succeeds."""
        with self._lock:
            return self._faults.pop(0) if self._faults else None


async def fail_boot() -> None:
    raise OSError(errno.EIO, "this boot was to fail")


_NOLOGIN_MINUTES = 5


@dataclass(kw_only=True, eq=False)
class ShutdownTimer:
    """Shuts an instance down once, and forbids logins in the last five minutes before.

    Source: shutdown(8); another time does not let users in again, only a cancel does.

    Args:
        instance: The instance.
        loop: The loop on which all of this happens.
        shut_down: Ends or stops the instance.
    """

    instance: LocalInstance
    loop: asyncio.AbstractEventLoop
    shut_down: Callable[[], None]
    _handles: list[asyncio.TimerHandle] = field(default_factory=list)

    def obey(self, order: str) -> None:
        """Carry out an order of the program: a delay in seconds, `cancel`, or `reboot`, a no-op."""
        self.cancel()
        if order == "cancel":
            self.instance.forbid_logins(forbid=False)
        elif order != "reboot":
            delay_s = max(0.0, float(order))
            open_s = max(0.0, delay_s - _NOLOGIN_MINUTES * self.instance.minute_s)
            forbid = partial(self.instance.forbid_logins, forbid=True)
            self._handles = [
                self.loop.call_later(open_s, forbid),
                self.loop.call_later(delay_s, self.shut_down),
            ]

    def cancel(self) -> None:
        """Clear the timer, without letting users in again."""
        for handle in self._handles:
            handle.cancel()
        self._handles = []


_STEP_S = 5.0
# Of their own: folders with much in them must not keep other instances from booting.
_REMOVING = ThreadPoolExecutor(4, thread_name_prefix="removal")

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """An instance in moto, and its processes and servers."""

    record: InstanceRecord
    instance: LocalInstance
    fault: BootFault | None = None
    boot: asyncio.Task[None] | None = None
    power: ShutdownTimer
    notice: asyncio.TimerHandle | None = None


async def halt(entries: Sequence[Entry], *, grace_s: float) -> None:
    """End SSH server and programs together, as systemd does, then what is left or began meanwhile."""
    await do_for_all("end logins", entries, _end_logins)
    await ask_to_end(_marks(entries), grace_s=grace_s)
    # Namespaces, or its own user, end with all that is in them, however quickly it forks; but not before
    # what entered them, and is outside, has ended: nsenter stops with its program.
    closing = do_for_all("close", entries, lambda entry: entry.instance.close())
    outside = replace(_marks(entries), spaces=frozenset())
    await asyncio.gather(closing, end_all(outside))
    await end_all(_marks(entries))


async def remove(entries: Sequence[Entry]) -> None:
    """Remove the folders; those that take their time are removed meanwhile."""
    loop = asyncio.get_running_loop()
    removals = {entry: loop.run_in_executor(_REMOVING, entry.instance.remove) for entry in entries}
    await do_for_all("remove", entries, lambda entry: asyncio.shield(removals[entry]))
    # A session that was just starting may have slipped through; without its folder none can any more.
    await end_all(_marks(entries))


def _marks(entries: Iterable[Entry]) -> Marks:
    return reduce(or_, (entry.instance.container.marks() for entry in entries), Marks())


def record_end(entry: Entry, reason: StateReason) -> None:
    """Let the instance be terminated in moto, whatever that cannot undo there."""
    try:
        entry.record.terminate(reason)
    except Exception:
        log.exception("moto cannot undo all of %s", entry.record.instance_id)
    log.info("%s is terminated: %s", entry.record.instance_id, reason.value[0])


async def do_for_all(name: str, entries: Iterable[Entry], step: Callable[[Entry], Awaitable[object]]) -> None:
    """Do a step for all instances in parallel; one that fails or takes too long is logged and left alone."""

    async def do(entry: Entry) -> None:
        try:
            await asyncio.wait_for(step(entry), _STEP_S)
        except TimeoutError:
            log.warning("%s: step %r takes more than %.0f s", entry.record.instance_id, name, _STEP_S)
        except Exception:
            log.exception("%s: step %r failed", entry.record.instance_id, name)

    await asyncio.gather(*(do(entry) for entry in entries))


async def _end_logins(entry: Entry) -> None:
    entry.power.cancel()
    if entry.notice is not None:
        entry.notice.cancel()
    if entry.boot is not None and not entry.boot.done():
        entry.boot.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await entry.boot
    await entry.instance.end_logins()


def report_instance(record: InstanceRecord, instance: LocalInstance) -> dict[str, object]:
    """Return an instance as plain values."""
    return {
        "instance_id": record.instance_id,
        "instance_type": record.pool.instance_type,
        "zone": record.pool.zone,
        "state": record.state.value,
        "spot": record.market is Market.SPOT,
        "host": instance.listeners.host,
        "ssh_port": instance.listeners.ssh_port,
        "metadata_port": instance.listeners.metadata_port,
        "launched_at": record.launched_at.isoformat(),
        "folder": str(instance.root),
    }


# Time between SIGTERM and SIGKILL for the programs of an instance that ends; on EC2, systemd waits longer.
_GRACE_S = 5.0
_LAST_GRACE_S = 1.0  # where the daemon ends
_NAMING_S = 0.2
_RETRY_S = 0.5
_LAST_ATTEMPTS = 3  # where the daemon ends
_END_REASONS = {BootFault.ENDS: StateReason.BOOT, BootFault.NO_KEY: StateReason.KEY}


class NotRunningError(Exception):
    """The instance exists and does not run."""


class SiteInstances:
    """The instances of one site. Public methods may be called from any thread.

    Args:
        boot_delay_s: How long an instance stays `pending`.
        iam: Returns the metadata documents of an instance's id and profile.
    """

    def __init__(
        self,
        *,
        paths: SitePaths,
        isolation: Isolation,
        interpreter: str,
        loop: asyncio.AbstractEventLoop,
        boot_delay_s: float,
        iam: Callable[[str, Any], Mapping[str, str]],
    ) -> None:
        self.boot_delay_s = boot_delay_s
        self.minute_s = 60.0
        # False: each instance has a `~/.cache` of its own, as on EC2.
        self.shares_cache = True
        self.boots = Boots()
        self.apt_lock_s = 0.0
        self.machine = ""
        self.reservations = LocalReservations(self._occupying)
        self.capacity = Capacity(
            lambda: [*(record.pool for record in self._occupying()), *self.reservations.idle()]
        )
        self.spot_market = SpotMarket(
            lambda: [r.pool for r in self._occupying() if r.market is Market.SPOT], self._interrupt_beyond
        )
        # Held from reading what is left of a pool until the launch into it.
        self.launching = threading.Lock()
        self._iam = iam
        self.isolation = isolation
        self._paths = paths
        self._loop = loop
        self._addresses = AddressPool(many=has_many_addresses(), instance_users=isolation.users)
        self._interpreter = interpreter
        self._entries: dict[str, Entry] = {}
        self._naming: asyncio.TimerHandle | None = None
        self._closing = False

    def copy_to_image(self, instance_id: str, image: Any) -> None:  # noqa: ANN401 - moto's object
        """Begin to copy an instance's folder to an image; see `make_image`."""
        tree, folder = self._entries[instance_id].instance.tree, images_folder(self._paths) / image.id
        self._submit(make_image(image, tree, folder, delay_s=self.boot_delay_s))

    def remove_image(self, image_id: str) -> None:
        """Remove what an image was a copy of, if it is one of this site's."""
        remove_tree(images_folder(self._paths) / image_id)

    def launch(self, records: Sequence[InstanceRecord]) -> None:
        """Boot instances that moto has made.

        Raises:
            OSError: There is no address for one of them, or the daemon is ending.
        """
        if self._closing:
            raise OSError(errno.ESHUTDOWN, "the local cloud is ending")
        if not self.report():
            share_cache(self._paths.cache, self.isolation)
        entries = []
        for record in records:
            try:
                entries.append(self._create(record))
            except OSError:
                for entry in entries:
                    entry.instance.listeners.close()
                    del self._entries[entry.record.instance_id]
                raise
            self._entries[record.instance_id] = entries[-1]
        self._loop.call_soon_threadsafe(self._start_boots, entries)

    def terminate(self, instance_ids: Iterable[str], reason: StateReason) -> None:
        """Begin to terminate instances; unknown ids, and instances that end already, are ignored."""
        ending = (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED)
        entries = [entry for entry in self._named(instance_ids) if entry.record.state not in ending]
        for entry in entries:
            entry.record.set_reason(reason)
            entry.record.set_state(InstanceState.SHUTTING_DOWN)
        self._submit(self._terminate(entries, reason))

    def apply_security_groups(self) -> None:
        """Let the rules of the security groups, as they are now, decide on new connections to port 22."""
        for entry in self._all():
            entry.instance.listeners.ssh.admit(entry.record.ssh_sources())

    def interrupt(self, instance_id: str, *, grace_s: float, rebalance: bool) -> bool:
        """Give an interruption notice and terminate after the grace; False if the instance does not run."""
        entry = self._entries.get(instance_id)
        if entry is None or not entry.record.is_booting_or_running:
            return False
        now = datetime.now(UTC)
        if rebalance:
            entry.instance.notices.rebalance_at = now
        else:
            entry.instance.notices.ends_at = now + timedelta(seconds=grace_s)
            self._loop.call_soon_threadsafe(self._terminate_later, entry, grace_s)
        return True

    def zone(self, instance_id: str, account: str) -> str:
        """Return the Availability Zone of an account's instance.

        Raises:
            KeyError: There is no such instance.
        """
        record = self._entries[instance_id].record
        if record.identity().account_id != account:
            raise KeyError(instance_id)
        return record.pool.zone

    def admit_key(self, instance_id: str, public_key: str, *, seconds: float) -> None:
        """Accept a public key at an instance's SSH server for a while.

        Raises:
            KeyError: There is no such instance.
            NotRunningError: It does not run.
            ValueError: It is no public key.
        """
        entry = self._entries[instance_id]
        state = entry.record.state
        if state is not InstanceState.RUNNING or not entry.instance.admit_key(public_key, seconds=seconds):
            raise NotRunningError(f"{instance_id} is {state}, not running")

    def state(self, instance_id: str) -> InstanceState:
        """Return the state of an instance; terminated for one that is not known."""
        entry = self._entries.get(instance_id)
        return InstanceState.TERMINATED if entry is None else entry.record.state

    def run_service(
        self, instance_id: str, name: str, argv: list[str], env: Mapping[str, str], *, limit_s: float | None
    ) -> int:
        """Run a program on an instance until it ends; see `InstanceServices.run`."""
        instance = self._entries[instance_id].instance
        running = instance.run_service(name, argv, env, limit_s=limit_s)
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def end_service(self, instance_id: str, name: str) -> None:
        """End a program that `run_service` runs."""
        if (entry := self._entries.get(instance_id)) is not None:
            self._loop.call_soon_threadsafe(entry.instance.services.end, name)

    def console(self, instance_id: str) -> str:
        """Return the console output of an instance; empty if it is forgotten."""
        entry = self._entries.get(instance_id)
        return "" if entry is None else entry.instance.console()

    def left(self, instance_type: str, zone: str | None, market: Market) -> int:
        """Return how many more instances of a type fit, in one zone or in all together."""
        left = self.capacity.left(instance_type, zone)
        return min(left, self.spot_market.left(instance_type, zone)) if market is Market.SPOT else left

    def _occupying(self) -> list[InstanceRecord]:
        return [entry.record for entry in self._all() if entry.record.occupies_capacity]

    def _interrupt_beyond(self, instance_type: str, zone: str | None, count: int, grace_s: float) -> None:
        self.shrink_to_capacity(instance_type, zone, count, grace_s, markets=(Market.SPOT,))

    def shrink_to_capacity(
        self,
        instance_type: str,
        zone: str | None,
        count: int,
        grace_s: float,
        *,
        markets: Sequence[Market] = tuple(Market),
    ) -> None:
        """Interrupt the youngest spot instances of a type beyond a limit on the instances of some markets."""
        records = [
            entry.record
            for entry in self._all()
            if entry.record.occupies_capacity
            and entry.instance.notices.ends_at is None
            and entry.record.pool.instance_type == instance_type
            and is_in(entry.record.pool.zone, zone)
            and entry.record.market in markets
        ]
        spot = [record for record in records if record.market is Market.SPOT]
        spot.sort(key=lambda record: (record.launched_at, record.instance_id), reverse=True)
        for record in spot[: max(0, len(records) - count)]:
            self.interrupt(record.instance_id, grace_s=grace_s, rebalance=False)

    def forget(self, before: datetime) -> set[str]:
        """Drop the instances that were terminated before a moment; returns their ids."""
        ended = {
            entry.record.instance_id
            for entry in self._all()
            if entry.record.ended_at is not None and entry.record.ended_at < before
        }
        for instance_id in ended:
            del self._entries[instance_id]
        return ended

    def users(self) -> set[int]:
        """Return the user ids of the programs of the instances that have not ended."""
        ended = InstanceState.TERMINATED
        return {entry.instance.container.owner for entry in self._all() if entry.record.state is not ended}

    def report(self) -> list[dict[str, object]]:
        """Return the instances as plain values, for the status page."""
        living = [entry for entry in self._all() if entry.record.state is not InstanceState.TERMINATED]
        return [report_instance(entry.record, entry.instance) for entry in living]

    def running(self) -> list[tuple[str, Market, str]]:
        """Return the type, the market and the zone of each instance that counts against the account's quotas.

        What a reservation holds counts, too. Source: EC2 user guide, "Capacity Reservation limitations".
        """
        idle = [(pool.instance_type, Market.ON_DEMAND, pool.zone) for pool in self.reservations.idle()]
        return idle + [
            (entry.record.pool.instance_type, entry.record.market, entry.record.pool.zone)
            for entry in self._all()
            if entry.record.is_booting_or_running
        ]

    async def close(self) -> None:
        """Refuse launches, and terminate every instance before returning."""
        self._closing = True
        entries = [entry for entry in self._all() if entry.record.state is not InstanceState.TERMINATED]
        await self._terminate(entries, StateReason.USER, grace_s=_LAST_GRACE_S)
        await end_all(_marks(self._all()))

    def _all(self) -> list[Entry]:
        return list(self._entries.values())

    def _named(self, instance_ids: Iterable[str]) -> list[Entry]:
        return [self._entries[name] for name in instance_ids if name in self._entries]

    def _create(self, record: InstanceRecord) -> Entry:
        instance_id = record.instance_id
        listeners, fault = self._addresses.take(), self.boots.next_fault()
        record.take_address(listeners)
        identity, root = record.identity(), self._paths.instances / instance_id
        instance = LocalInstance(
            identity=identity,
            root=root,
            container=(UNISOLATED if self.machine else self.isolation).container(
                root, self._interpreter, self.users()
            ),
            instance_users=self.isolation.users,
            image=images_folder(self._paths) / identity.image_id,
            cache=self._paths.cache if self.shares_cache else root / "home/.cache",
            listeners=listeners,
            interpreter=self._interpreter,
            properties=record.metadata_documents,
            iam=lambda: self._iam(instance_id, record.profile()),
            minute_s=self.minute_s,
            is_silent=fault is BootFault.SILENT,
            apt_lock_s=self.apt_lock_s,
            machine=self.machine,
            power=lambda order: self._entries[instance_id].power.obey(order),  # noqa: PLW0108 - it is made below
        )
        shut_down = partial(self._shut_down, record)
        timer = ShutdownTimer(instance=instance, loop=self._loop, shut_down=shut_down)
        return Entry(record=record, instance=instance, power=timer, fault=fault)

    def _start_boots(self, entries: list[Entry]) -> None:
        for entry in entries:
            name = f"boot {entry.record.instance_id}"
            boot = fail_boot if entry.fault in _END_REASONS else entry.instance.boot
            entry.boot = self._loop.create_task(self._boot(entry, boot), name=name)

    async def _boot(self, entry: Entry, boot: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Boot for at least the boot delay; a boot that fails terminates the instance, as on EC2."""
        try:
            await asyncio.gather(asyncio.sleep(self.boot_delay_s), boot())
        except Exception:
            log.exception("%s could not boot", entry.record.instance_id)
            entry.boot = None
            reason = _END_REASONS.get(entry.fault, StateReason.BOOT) if entry.fault else StateReason.BOOT
            self.terminate([entry.record.instance_id], reason)
            return
        if entry.record.state is InstanceState.PENDING:
            entry.record.set_state(InstanceState.RUNNING)
            self._write_names_soon()
            log.info("%s runs at %s", entry.record.instance_id, entry.instance.listeners.host)

    async def _terminate(
        self, entries: list[Entry], reason: StateReason, *, grace_s: float = _GRACE_S
    ) -> None:
        """Bring instances down, and record the end; what fails is tried again until it succeeds."""
        if not entries:
            return
        for attempt in count(1):
            try:
                await halt(entries, grace_s=grace_s)
                await remove(entries)
                break
            except Exception:
                log.exception("attempt %d to bring %d instances down failed", attempt, len(entries))
                if self._closing and attempt >= _LAST_ATTEMPTS:
                    break
                await asyncio.sleep(_RETRY_S)
        for entry in entries:
            if entry.record.state is not InstanceState.TERMINATED:
                record_end(entry, reason)
                self._write_names_soon()

    def _write_names_soon(self) -> None:
        """Let the DNS names of instances resolve on all of them, once for those that come or go about now."""
        if self._naming is None or self._naming.when() < self._loop.time():
            self._naming = self._loop.call_later(_NAMING_S, self._write_names)

    def _write_names(self) -> None:
        entries = [entry for entry in self._all() if entry.record.state is InstanceState.RUNNING]
        lines = [hosts_line(entry.instance.listeners.host, entry.record.names()[1:]) for entry in entries]
        for entry in entries:
            entry.instance.container.write_hosts(lines)

    def _terminate_later(self, entry: Entry, grace_s: float) -> None:
        if entry.notice is not None:
            entry.notice.cancel()
        instance_ids = [entry.record.instance_id]
        entry.notice = self._loop.call_later(grace_s, self.terminate, instance_ids, StateReason.SPOT)

    def _shut_down(self, record: InstanceRecord) -> None:
        """Terminate an instance that shuts itself down, or stop it: it cannot be started again."""
        if record.terminates_at_shutdown:
            self.terminate([record.instance_id], StateReason.ITSELF)
        elif record.is_booting_or_running:
            record.set_state(InstanceState.STOPPING)
            self._submit(self._stop(self._entries[record.instance_id]))

    async def _stop(self, entry: Entry) -> None:
        await halt([entry], grace_s=_GRACE_S)
        if entry.record.state is InstanceState.STOPPING:
            entry.record.stop(StateReason.ITSELF)

    def _submit(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop without waiting for it; log its exception."""
        if self._closing:
            work.close()
            return
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_failure)


def _log_failure(done: "Future[None]") -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("an instance could not be brought down", exc_info=error)
