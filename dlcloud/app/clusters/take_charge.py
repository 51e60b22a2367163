"""Take charge of a cluster that another process manages: that process is asked to end it first."""

import os
import signal
from contextlib import suppress
from operator import not_

from dlcloud.app.context import Context
from dlcloud.launch.acquire import ClusterLock, lock_cluster
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import StoreError
from dlcloud.model.events import Info, Warned
from dlcloud.model.wait import wait_until
from dlcloud.store.paths import Paths
from dlcloud.system.files import FileLock

ANSWER_S = 60.0
"""A process that was asked to end has so long; ending a cluster takes it a few seconds."""
GONE_S = 5.0
"""The kernel releases the lock of a killed process within this."""
POLL_S = 0.1


def take_charge(context: Context, cluster: Cluster, *, yes: bool) -> ClusterLock:
    """Lock a cluster; a process in charge of it is sent SIGTERM, on which it ends the cluster itself.

    One that has not ended after ANSWER_S is killed: what it began, this command finishes.

    Args:
        context: The collaborators.
        cluster: The cluster.
        yes: Also end a process that is in charge of other clusters, too.

    Raises:
        StoreError: The process is another user's or another machine's, or is in charge of other clusters.
    """
    try:
        return lock_cluster(cluster, paths=context.paths)
    except StoreError as error:
        lock = FileLock(context.paths.cluster_lock(cluster.cluster_id))
        holder = lock.holder_id()
        if holder is None or holder == os.getpid():
            raise
        if not yes:
            _refuse_others(context, cluster, holder, error)
    context.emit(Info(message=f"process {holder} is in charge of {cluster.name}: asking it to end"))
    if not _end(holder, signal.SIGTERM, lock, context.clock, ANSWER_S):
        message = f"process {holder} has not ended within {ANSWER_S:.0f} s: it is killed"
        context.emit(Warned(message=f"{message}, and {cluster.name} is ended from here"))
        _end(holder, signal.SIGKILL, lock, context.clock, GONE_S)
    return lock_cluster(cluster, paths=context.paths)


def _refuse_others(context: Context, cluster: Cluster, holder: int, error: StoreError) -> None:
    """Refuse to end a process that is in charge of other clusters, as a bench of several types is."""
    others = [
        other.name
        for other in context.clusters.active()
        if other.cluster_id != cluster.cluster_id and _is_held(other, holder, context.paths)
    ]
    if others:
        message = f"process {holder} is in charge of {cluster.name}, and of {', '.join(others)}"
        raise StoreError(message, f"dlcloud down {cluster.name} --yes terminates them all") from error


def _is_held(cluster: Cluster, holder: int, paths: Paths) -> bool:
    return FileLock(paths.cluster_lock(cluster.cluster_id)).holder_id() == holder


def _end(holder: int, number: signal.Signals, lock: FileLock, clock: Clock, seconds: float) -> bool:
    """Send a signal to a process; True once it holds the lock no more, False if it does after `seconds`."""
    with suppress(ProcessLookupError):
        os.kill(holder, number)
    return not wait_until(lock.is_held, not_, clock=clock, timeout_s=seconds, poll_s=POLL_S)
