"""The order of a job over several nodes: servers of the head, then of the others, work, and back again.

The head listens on the last of its free ports; the others connect to it, and both prove the job's secret.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from types import TracebackType
from typing import Any, Self

from ..nodes.channel import Channel, LostError
from .job import Job
from .services import Service, ServiceError, report, run_services

CONNECT_S = 600.0
"""For the head's servers to become healthy, before the others connect."""

RETRY_S = 0.2

NOTICE_S = 60.0
"""For the work to notice that a server of the head has ended; then the head ends without it."""

Handle = Callable[[dict[str, Any], Channel], None]
"""Takes a message of the head that is not about the order."""


@dataclass(slots=True, kw_only=True)
class Others:
    """The head's connections to the other nodes, by rank."""

    job: Job
    channels: dict[int, Channel] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Wait for all of them; a node that fails ends the whole job, so there is no other limit."""
        address = (self.job.address, self.job.head_ports[-1])
        with Listener(address, backlog=self.job.nodes, authkey=self.job.secret.encode()) as listener:
            while len(self.channels) < self.job.nodes - 1:
                with suppress(OSError, EOFError, AuthenticationError, LostError):
                    channel = Channel(connection=listener.accept())
                    self.channels[int(channel.receive()["rank"])] = channel
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self.channels.values():
            channel.close()

    def request(self, order: str, answer: str) -> None:
        """Send all an order, and wait until all have answered.

        Raises:
            LostError: One is gone.
        """
        for channel in self.channels.values():
            channel.send(order=order)
        for channel in self.channels.values():
            expect(channel, answer)

    def stop(self) -> None:
        """Have all stop their servers; one that is gone has none."""
        with suppress(LostError):
            self.request("stop", "stopped")


def run_job(
    job: Job,
    *,
    head: Sequence[Service],
    others: Sequence[Service],
    work: Callable[[Others], None],
    handle: Handle | None = None,
) -> int:
    """Run a job on this node, and return its exit status.

    Args:
        job: The job.
        head: The servers of the head, started first and stopped last.
        others: The servers of each other node.
        work: What the head does when all are healthy.
        handle: What the other nodes do with messages of `work`.
    """
    try:
        if job.is_head:
            _lead(job, head, work)
        else:
            _follow(job, others, handle)
    except (ServiceError, LostError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _lead(job: Job, services: Sequence[Service], work: Callable[[Others], None]) -> None:
    with ExitStack() as stack:
        stack.enter_context(run_services(services, job.folder, on_failure=_end_soon))
        others = stack.enter_context(Others(job=job))
        stack.callback(others.stop)
        others.request("start", "healthy")
        if others.channels:
            report(f"all {job.nodes} nodes are healthy")
        work(others)


def _follow(job: Job, services: Sequence[Service], handle: Handle | None) -> None:
    channel = _connect(job)
    channel.send(rank=job.rank)
    expect(channel, "start")
    with run_services(services, job.folder, on_failure=channel.close):
        channel.send(order="healthy")
        while (message := channel.receive()).get("order") != "stop":
            if handle is not None:
                handle(message, channel)
    channel.send(order="stopped")
    with suppress(LostError):  # the head closes when all have stopped
        channel.receive()


def _end_soon() -> None:
    timer = threading.Timer(NOTICE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _connect(job: Job) -> Channel:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            address = (job.head_address, job.head_ports[-1])
            return Channel(connection=Client(address, authkey=job.secret.encode()))
        except (OSError, EOFError, AuthenticationError) as error:
            if time.monotonic() >= deadline:
                raise LostError(f"no connection to the head: {error}") from error
        time.sleep(RETRY_S)


def expect(channel: Channel, order: str) -> None:
    """Receive one message.

    Raises:
        LostError: The other side is gone, or sent another.
    """
    message = channel.receive()
    if message.get("order") != order:
        raise LostError(f"expected {order!r}, received {message}")
