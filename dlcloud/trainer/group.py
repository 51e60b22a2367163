"""The connections among the workers of a quorum, over which they sum; every wait can be broken off.

PyTorch's own process groups do the work. A call of gloo cannot be aborted, it ends with its own time-out
only; so it is made from a thread or waited for in slices, and one that hangs is left to a thread.
"""

import atexit
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, ReduceOp, TCPStore
from torch.distributed.distributed_c10d import AllreduceOptions

SLICE_S = 0.1

MOST_SLICE_S = 0.5
"""A longer slice is a pause of this machine: more of it does not count."""


_hanging: list[tuple[list[Any], Any]] = []
"""Sums that have not ended, with their connections: to close these would wait for them."""


@atexit.register
def _leave_hanging() -> None:
    """Let the process end without them."""
    for pair in _hanging:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pair))


class GroupError(Exception):
    """The connections could not be made, or a peer is gone."""


class WorkerGroup:
    """The connections of a worker in one quorum.

    Args:
        host, port: Of the store at which the workers find each other.
        number: Of the quorum.
        rank, size: This worker's place.
        connect_s: Time for a connection.
        reduce_s: Longest time of a sum.
        is_broken: True once a worker of the quorum is gone.

    Raises:
        GroupError: A worker is gone, or does not answer in time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        number: int,
        rank: int,
        size: int,
        connect_s: float,
        reduce_s: float,
        is_broken: Callable[[], bool],
    ) -> None:
        limit, self._reduce = timedelta(seconds=connect_s), timedelta(seconds=reduce_s)
        self._is_broken, self._works = is_broken, list[Any]()

        def connect() -> Any:  # noqa: ANN401 - gloo's or NCCL's
            client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
            store = PrefixStore(str(number), client)
            if torch.cuda.is_available():
                return _make_nccl(store, rank, size)
            return ProcessGroupGloo(store, rank, size, timeout=limit)

        # Each of the other workers may take its time.
        self._group = _call(connect, limit_s=2 * connect_s, is_broken=is_broken)

    def allreduce(self, values: Tensor) -> None:
        """Begin to sum, in place.

        Raises:
            GroupError: A worker is gone.
        """
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        options.timeout = self._reduce
        try:
            self._works.append(self._group.allreduce([values], options))
        except RuntimeError as error:
            raise GroupError(str(error)) from error

    def wait(self, limit_s: float) -> None:
        """Wait for the sums that have begun.

        Raises:
            GroupError: A worker is gone, or hangs; values may still be written to.
        """
        waited, before = 0.0, time.monotonic()
        for work in self._works:
            while not _wait_slice(work):
                now = time.monotonic()
                waited, before = waited + min(now - before, MOST_SLICE_S), now
                if self._is_broken():
                    raise GroupError("a worker is gone")
                if waited > limit_s:
                    raise GroupError(f"a sum has not ended after {limit_s:.1f} s")
        self._works = []

    def close(self) -> None:
        """Give the connections up; those of a sum that hangs are closed once it has ended."""
        if torch.cuda.is_available() and self._group is not None:
            self._group.abort()
        _hanging.append((self._works, self._group))
        self._works, self._group = [], None
        _hanging[:] = [
            (works, group) for works, group in _hanging if not all(work.is_completed() for work in works)
        ]


def _call(make: Callable[[], Any], *, limit_s: float, is_broken: Callable[[], bool]) -> Any:  # noqa: ANN401
    """Call from a thread, and wait for the result until it is of no use any more."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(make())
        except Exception as error:  # noqa: BLE001 - PyTorch's errors have no class in common
            results.put(error)

    threading.Thread(target=work, name="connect", daemon=True).start()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not is_broken():
        try:
            result = results.get(timeout=SLICE_S)
        except queue.Empty:
            continue
        if isinstance(result, Exception):
            raise GroupError(str(result)) from result
        return result
    raise GroupError("a worker is gone" if is_broken() else f"no connection within {limit_s:g} s")


def _make_nccl(store: PrefixStore, rank: int, size: int) -> Any:  # noqa: ANN401
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415 - only where PyTorch has it

    options = ProcessGroupNCCL.Options()
    options.config.blocking = False
    return ProcessGroupNCCL(store, rank, size, options)


def _wait_slice(work: Any) -> bool:  # noqa: ANN401 - Work of PyTorch
    """Wait a slice for a sum; return True if it has ended.

    Raises:
        GroupError: It failed.
    """
    if torch.cuda.is_available():
        if not work.is_completed():
            time.sleep(0.0005)
            return False
    else:
        try:
            work.wait(timedelta(seconds=SLICE_S))
        except RuntimeError:
            if not work.is_completed():
                return False
        else:
            return True
    # It has ended, and waiting again tells how: whatever PyTorch calls the end of a slice.
    try:
        work.wait()
    except RuntimeError as error:
        raise GroupError(str(error)) from error
    return True
