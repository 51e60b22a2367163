"""The end of instances: each step within a time, and none of one instance in the way of another's."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dlcloud.local.ec2.record import InstanceRecord, StateReason
from dlcloud.local.instance.boots import BootFault
from dlcloud.local.instance.local_instance import LocalInstance
from dlcloud.local.instance.power import ShutdownTimer
from dlcloud.local.instance.processes import ask_to_end, end_all

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
    """End the SSH server and the programs at once, as systemd does, then what is left or began meanwhile."""
    roots = [entry.instance.root for entry in entries]
    await do_for_all("end logins", entries, _end_logins)
    await ask_to_end(roots, grace_s=grace_s)
    # Namespaces, or a user of its own, end with all that is in them, however quickly it forks; but not before
    # what entered them, and is outside, has ended: nsenter stops with its program.
    closing = do_for_all("close", entries, lambda entry: entry.instance.close())
    await asyncio.gather(closing, end_all(roots))
    await end_all(roots)


async def remove(entries: Sequence[Entry]) -> None:
    """Remove the folders; those that take their time are removed meanwhile."""
    loop = asyncio.get_running_loop()
    removals = {entry: loop.run_in_executor(_REMOVING, entry.instance.remove) for entry in entries}
    await do_for_all("remove", entries, lambda entry: asyncio.shield(removals[entry]))
    # A session that was just starting may have slipped through; without its folder none can any more.
    await end_all([entry.instance.root for entry in entries])


def record_end(entry: Entry, reason: StateReason) -> None:
    """Let the instance be terminated in moto, whatever that cannot undo there."""
    try:
        entry.record.terminate(reason)
    except Exception:
        log.exception("moto cannot undo all of %s", entry.record.instance_id)
    log.info("%s is terminated: %s", entry.record.instance_id, reason.value[0])


async def do_for_all(name: str, entries: Iterable[Entry], step: Callable[[Entry], Awaitable[object]]) -> None:
    """Do a step for all instances at once; one that fails or takes too long is logged and left alone."""

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
