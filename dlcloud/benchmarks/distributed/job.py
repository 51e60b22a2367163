"""A job over several nodes, seen from one of them: what it knows of the others, its servers, and their order.

`read_job` reads the variables in docs/nodes.md. `run_job` starts the servers of the head, then those of the
other nodes, each once the one before is healthy, does the work, and stops them in reverse. The head listens
on the last of its free ports; the others connect to it, and both prove the job's secret. A server that ends
during the work fails the job: an engine could continue without it, only slower.
"""

import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..nodes.node import Channel, LostError, slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job over several nodes, seen from one of them.

    Attributes:
        rank: Of this node; 0 is the head.
        nodes: Their number.
        addresses: By rank, each as the others reach it.
        head_ports: Free TCP ports of the head; the last is for `run_job`.
        node_ports: Free TCP ports of this node.
        secret: Of this job alone, shared by its nodes.
        slots: GPUs of this node, or CPUs where it has none.
        folder: For logs and settings, next to the folder in which the command runs.
    """

    rank: int
    nodes: int
    addresses: Sequence[str]
    head_ports: Sequence[int]
    node_ports: Sequence[int]
    secret: str
    slots: int
    folder: Path

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def head_address(self) -> str:
        return self.addresses[0]

    @property
    def address(self) -> str:
        return self.addresses[self.rank]

    @property
    def is_on_loopback(self) -> bool:
        return ipaddress.ip_address(self.head_address).is_loopback


def read_job(environment: Mapping[str, str] = os.environ) -> Job:
    """Return the job of this process.

    Raises:
        SystemExit: It was not started by `workload.nodes: all`.
    """
    if "DLCLOUD_NODE_RANK" not in environment:
        raise SystemExit("there are no nodes: run it by a recipe with workload.nodes: all")
    return Job(
        rank=int(environment["DLCLOUD_NODE_RANK"]),
        nodes=int(environment["DLCLOUD_NODES"]),
        addresses=environment["DLCLOUD_NODE_ADDRESSES"].split(","),
        head_ports=_ports(environment["DLCLOUD_HEAD_PORTS"]),
        node_ports=_ports(environment["DLCLOUD_NODE_PORTS"]),
        secret=environment["DLCLOUD_SECRET"],
        slots=slots(),
        folder=Path(environment["DLCLOUD_HOST_FILE"]).parent,
    )


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",")]


HEALTHY_S = 300.0
"""For a server to become healthy: Java and Ray take most of a minute on a busy machine."""

GRACE_S = 30.0
"""Between SIGTERM and SIGKILL."""

POLL_S = 0.2
TAIL_CHARACTERS = 2000


class ServiceError(Exception):
    """A server ended, or did not become healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that runs in the foreground.

    Attributes:
        is_healthy: Its health check, called until it is True.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_healthy: Callable[[], bool]


@dataclass(slots=True, kw_only=True)
class _Running:
    service: Service
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.service.command),
                env=dict(self.service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def find_failure(self) -> str:
        """Return how it ended, below the end of its log; nothing while it runs."""
        status = self.process.poll()
        return "" if status is None else self._describe(f"ended with status {status}")

    def wait_until_healthy(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not self.service.is_healthy():
            if failure := self.find_failure():
                raise ServiceError(failure)
            if time.monotonic() >= deadline:
                raise ServiceError(self._describe(f"not healthy in {within_s:.0f} s"))
            time.sleep(POLL_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _describe(self, failure: str) -> str:
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:].strip()
        return f"{tail}\n{self.service.name} {failure}".lstrip()


@contextmanager
def run_services(
    services: Sequence[Service],
    logs: Path,
    *,
    within_s: float = HEALTHY_S,
    on_failure: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Run servers during the block; they are stopped in reverse order, also where one fails to start.

    An engine may continue without one of its servers, slower: the block fails, although its work succeeds.

    Args:
        services: In the order in which they are started.
        logs: The folder for `NAME.log` of each.
        within_s: For each to become healthy.
        on_failure: Called from a thread when one ends during the block, which it ends.

    Raises:
        ServiceError: One ended or is not healthy; the message has the end of its log.
    """
    started: list[_Running] = []
    with ExitStack() as stack:
        for service in services:
            running = _Running(service=service, log=logs / f"{service.name}.log")
            began = time.monotonic()
            running.start()
            stack.callback(_stop, running)
            started.append(running)
            running.wait_until_healthy(within_s)
            report(f"{service.name} is healthy after {time.monotonic() - began:.1f} s")
        stack.enter_context(_watch(started, on_failure))
        yield


@contextmanager
def _watch(servers: Sequence[_Running], on_failure: Callable[[], object]) -> Iterator[None]:
    """Fail the block if a server ends during it."""
    done, failures = threading.Event(), list[str]()

    def look() -> None:
        while not failures and not done.wait(POLL_S):
            failures.extend(failure for server in servers if (failure := server.find_failure()))
        if failures:
            on_failure()

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if failures:
            raise ServiceError(failures[0]) from error
        raise
    finally:
        done.set()
        thread.join()
    failures.extend(failure for server in servers if (failure := server.find_failure()))
    if failures:
        raise ServiceError(failures[0])


def report(message: str) -> None:
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def _stop(running: _Running) -> None:
    running.stop()
    report(f"{running.service.name} is stopped")


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
