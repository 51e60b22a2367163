"""The node of rank 0: starts a command on all nodes, and ends it on all where it fails on one.

    python -m benchmarks.nodes.head --address ADDRESS --port PORT --nodes 3 --secret-file FILE --folder FOLDER
        [--forward NAME ...] -- LINE [ARGUMENT ...]

The run ends when rank 0 does; the others then have LAST_S to end by themselves. Its exit status is 0, or that
of the node which failed first, whose output ends its own.
"""

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from pathlib import Path
from types import FrameType

from ..command.shell import shell_words
from .node import (
    PORTS,
    Channel,
    LostError,
    Node,
    NodeProcess,
    free_ports,
    host_file_of,
    node_environment,
    slots,
    start_node,
)

LAST_S = 30.0
"""For the other nodes to end by themselves after rank 0 has."""

JOIN_S = 600.0
"""For all nodes to connect: they are set up before the run starts."""

REJOIN_S = 30.0
"""The same after a run that lost a node, which may be gone for good: a living node connects immediately."""

LOST_FILE = "lost"
"""Next to the folder in which the command runs: a node was lost, and has not joined again."""

HEAD = 0


class NodesError(Exception):
    """The run cannot begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Another node has connected."""

    rank: int
    address: str
    slots: int
    channel: Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Another node has reserved its ports."""

    rank: int
    ports: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The command on a node has ended; `status` is None where the node is lost."""

    rank: int
    status: int | None
    tail: str


Event = Joined | Reserved | Ended


@dataclass(slots=True, kw_only=True)
class Head:
    """One run of the command on all nodes."""

    arguments: argparse.Namespace
    secret: str
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    joined: dict[int, Joined] = field(default_factory=dict)
    process: NodeProcess | None = None

    def run(self) -> Ended:
        """Run the command; return the end of rank 0, or of the node that failed first.

        Raises:
            NodesError: A node did not come in time, or was lost before the start.
        """
        address = (self.arguments.address, self.arguments.port)
        listener = Listener(address, backlog=self.arguments.nodes, authkey=self.secret.encode())
        threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True).start()
        try:
            self._start(self._reserve())
            ended = self._wait()
            if ended.status is None:
                self._lost.touch()
            return ended
        finally:
            self._stop()

    @property
    def _lost(self) -> Path:
        return Path(self.arguments.folder).absolute().with_name(LOST_FILE)

    def _accept(self, listener: Listener) -> None:
        while True:
            with suppress(OSError, EOFError, AuthenticationError):
                channel = Channel(connection=listener.accept())
                threading.Thread(target=self._receive, args=(channel,), daemon=True).start()

    def _receive(self, channel: Channel) -> None:
        """Post what another node sends; a rank that joined before is not taken a second time."""
        rank = HEAD
        try:
            hello = channel.receive()
            rank = int(hello["rank"])
            address, slots = str(hello["address"]), int(hello["slots"])
            self.events.put(Joined(rank=rank, address=address, slots=slots, channel=channel))
            while True:
                message = channel.receive()
                if "ports" in message:
                    self.events.put(Reserved(rank=rank, ports=message["ports"]))
                if "ended" in message:
                    self.events.put(Ended(rank=rank, status=message["ended"], tail=message["tail"]))
        except (LostError, KeyError, TypeError, ValueError) as error:
            if rank != HEAD:
                self.events.put(Ended(rank=rank, status=None, tail=str(error)))

    def _reserve(self) -> list[Node]:
        """Wait for all nodes, and have each reserve its ports."""
        reserved: dict[int, Sequence[int]] = {HEAD: free_ports(PORTS)}
        limit_s = self.arguments.rejoin_seconds if self._lost.exists() else JOIN_S
        deadline = time.monotonic() + limit_s
        while len(reserved) < self.arguments.nodes:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(range(self.arguments.nodes)) - reserved.keys())
                self._lost.touch()
                raise NodesError(f"no connection from rank {missing[0]} within {limit_s:.0f} s") from None
            if isinstance(event, Joined) and event.rank not in self.joined:
                self.joined[event.rank] = event
                event.channel.send(prepare=True)
            elif isinstance(event, Reserved):
                reserved[event.rank] = event.ports
            elif isinstance(event, Ended):
                raise NodesError(f"rank {event.rank} was lost before the start: {event.tail}")
        self._lost.unlink(missing_ok=True)
        nodes = {HEAD: Node(address=self.arguments.address, slots=slots(), ports=reserved[HEAD])}
        for rank, other in self.joined.items():
            nodes[rank] = Node(address=other.address, slots=other.slots, ports=reserved[rank])
        return [nodes[rank] for rank in range(self.arguments.nodes)]

    def _start(self, nodes: Sequence[Node]) -> None:
        line, *added = self.arguments.line
        own = {name: os.environ.get(name) for name in self.arguments.forward}
        orders = [
            {
                "words": shell_words(line, added),
                "hosts": host_file_of(nodes),
                "environment": {**own, **node_environment(rank, nodes, secret=self.secret)},
            }
            for rank in range(len(nodes))
        ]
        for rank, other in self.joined.items():
            other.channel.send(start=orders[rank])
        self.process = start_node(
            orders[HEAD],
            self.arguments.folder,
            rank=HEAD,
            ended=lambda status, tail: self.events.put(Ended(rank=HEAD, status=status, tail=tail)),
        )

    def _wait(self) -> Ended:
        """Wait for the first failure, or for rank 0 and then, for LAST_S at most, for the others."""
        running, head_ended = set(range(self.arguments.nodes)), None
        deadline: float | None = None
        while running:
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                event = self.events.get(timeout=left)
            except queue.Empty:
                break
            if not isinstance(event, Ended) or event.rank not in running:
                continue
            running.discard(event.rank)
            if event.status != 0:
                return event
            if event.rank == HEAD:
                head_ended, deadline = event, time.monotonic() + self.arguments.last_seconds
        assert head_ended is not None  # noqa: S101 - all have ended, or the deadline that it set has passed
        return head_ended

    def _stop(self) -> None:
        """End what still runs, everywhere: each node also does so by itself when the connection closes."""
        for other in self.joined.values():
            other.channel.send(stop=True)
        if self.process is not None:
            self.process.stop()
        for other in self.joined.values():
            other.channel.close()


def describe(ended: Ended, nodes: int, address: str) -> str:
    """Return the line that names the node which failed, behind the end of its output."""
    where = f"rank {ended.rank} of {nodes} ({address})"
    if ended.status is None:
        return f"{where} was lost: {ended.tail}"
    return f"{ended.tail.rstrip()}\n{where} ended with status {ended.status}"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    head = Head(arguments=arguments, secret=arguments.secret_file.read_text(encoding="utf-8").strip())
    signal.signal(signal.SIGTERM, _exit)
    try:
        ended = head.run()
    except NodesError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if ended.status == 0:
        return 0
    address = arguments.address if ended.rank == HEAD else head.joined[ended.rank].address
    sys.stderr.write(f"{describe(ended, arguments.nodes, address)}\n")
    return ended.status or 1


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="of this node, for the others")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--nodes", required=True, type=int)
    parser.add_argument("--secret-file", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path, help="where the command runs")
    parser.add_argument("--last-seconds", type=float, default=LAST_S, help="for the others, after rank 0")
    parser.add_argument("--rejoin-seconds", type=float, default=REJOIN_S, help="for nodes, once one was lost")
    parser.add_argument(
        "--forward", action="append", default=[], metavar="NAME", help="a variable that all nodes take"
    )
    parser.add_argument("line", nargs="+", help="the command; what follows are its arguments")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
