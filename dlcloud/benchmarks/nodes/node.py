"""One node of a job: its messages to the head, its command with all child processes, its part in a run.

    python -m benchmarks.nodes.node --head ADDRESS:PORT --rank 2 --address ADDRESS
        --secret-file FILE --folder FOLDER

runs on each rank above 0. It connects to the head of a run (`head.py`), reserves ports, starts the command
that the head sends, and reports how it ended; then it waits for the head of the next run. The launcher ends
it with the run; without a head it exits after ALONE_S. The head runs its command by the same functions.

Messages are JSON objects. `multiprocessing.connection` authenticates both sides by HMAC before the first; its
pickles are not used. `node_environment` states the variables by which launchers of distributed programs
(torchrun, Lightning, TensorFlow, Open MPI) learn of the nodes: rank, addresses, ports.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from .. import resume
from ..command import reporting
from ..command.variant import activate

BEAT_S = 2.0
"""Seconds between signs of life."""

SILENCE_S = 60.0
"""A peer that was silent for this long is lost: an instance that lost its power closes no connection."""

LARGEST = 1 << 20
"""Of a message, in bytes."""


class LostError(Exception):
    """The other side is gone."""


@dataclass(slots=True, kw_only=True)
class Channel:
    """One side of a connection; any thread may send, one receives."""

    connection: Connection
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def send(self, **message: object) -> None:
        """Send a message; one that cannot be sent is lost, which `receive` notices."""
        with contextlib.suppress(OSError, ValueError), self._lock:
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Return the next message that is not a sign of life.

        Raises:
            LostError: The other side closed, was silent for SILENCE_S, or sent no JSON object.
        """
        while True:
            try:
                if not self.connection.poll(SILENCE_S):
                    raise LostError(f"silent for {SILENCE_S:.0f} s")
                message = json.loads(self.connection.recv_bytes(LARGEST))
            except (OSError, EOFError, ValueError) as error:
                raise LostError("the connection was closed") from error
            if not isinstance(message, dict):
                raise LostError("it sent no message")
            if message:
                return message

    def close(self) -> None:
        """Shut the connection down, which a thread in `receive` notices immediately."""
        self._closed.set()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self.send()


GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""

DRAIN_S = 2.0
"""For the last output of a process that failed, whose child processes may hold it open for longer."""

TAIL_BYTES = 4096
"""Of the output, kept for the message of a failure."""

HOST_FILE = "hosts"
"""The file of all nodes, next to the folder in which the command runs: `DLCLOUD_HOST_FILE`."""

Ended = Callable[[int, str], None]
"""Receives the exit status, 128 + N for signal N, and the end of the output."""


@dataclass(slots=True, kw_only=True)
class NodeProcess:
    """A shell command; `ended` is called once, from a thread, when it has ended and its output is written.

    Args:
        prefix: Begins each line of its output, which is copied to this process's own.
        is_apart: True for its own session; otherwise what ends this process's group ends it, too.
    """

    words: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    prefix: bytes
    is_apart: bool
    ended: Ended
    _tail: bytes = field(default=b"", init=False)
    _process: subprocess.Popen[bytes] = field(init=False)
    _copier: threading.Thread = field(init=False)
    _done: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            self.words,
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=self.is_apart,
        )
        self._copier = threading.Thread(target=self._copy, name="output", daemon=True)
        self._copier.start()
        threading.Thread(target=self._follow, name="end", daemon=True).start()

    def stop(self, grace_s: float = GRACE_S) -> None:
        self._signal(signal.SIGTERM)
        self._copier.join(grace_s)  # until child processes have ended, too
        self._signal(signal.SIGKILL)
        self._done.wait(grace_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once `ended` was called."""
        return self._done.wait(timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self.is_apart:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _copy(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - requested as a pipe
        for line in self._process.stdout:
            self._tail = (self._tail + line)[-TAIL_BYTES:]
            sys.stdout.buffer.write(self.prefix + line)
            sys.stdout.buffer.flush()

    def _follow(self) -> None:
        """Report the end: a failure immediately, a success when child processes have ended, too."""
        status = self._process.wait()
        self._copier.join(DRAIN_S if status else None)
        self.ended(status if status >= 0 else 128 - status, self._tail.decode("utf-8", "replace"))
        self._done.set()


def start_node(order: Mapping[str, Any], folder: Path, *, rank: int, ended: Ended) -> NodeProcess:
    """Start the command on this node.

    `order` is what the head sends to every node: `words`, `hosts` (the text of the host file) and
    `environment`, in which null removes a variable of this process's.
    """
    host_file = folder.absolute().with_name(HOST_FILE)
    host_file.write_text(order["hosts"], encoding="utf-8")
    variables = {**activate(os.environ), **order["environment"], "DLCLOUD_HOST_FILE": str(host_file)}
    if rank:  # the values that rank 0 reports are the job's; the others import the module, too
        shutil.copy(reporting.__file__, host_file.with_name(reporting.MODULE))
    hook = host_file.with_name("resume")
    if is_resuming := rank > 0 and variables.get("DLCLOUD_RESUME") == "auto":  # on rank 0 the harness does it
        hook.mkdir(exist_ok=True)
        resume.install(hook)
    # Of the programs of bundled recipes, `benchmarks.distributed`.
    path = filter(
        None, (str(hook) if is_resuming else "", variables.get("PYTHONPATH"), str(host_file.parent))
    )
    variables["PYTHONPATH"] = os.pathsep.join(path)
    return NodeProcess(
        words=order["words"],
        folder=folder,
        environment={name: value for name, value in variables.items() if value is not None},
        prefix=f"[{rank}] ".encode() if rank else b"",  # the harness reads the throughput of rank 0
        is_apart=rank > 0,  # the harness ends the group of rank 0
        ended=ended,
    )


def slots() -> int:
    """Return the number of NVIDIA GPUs of this node, or of the CPUs that it may use where it has none."""
    gpus = len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])
    affinity = getattr(os, "sched_getaffinity", None)
    return gpus or (len(affinity(0)) if affinity else os.cpu_count() or 1)


def free_ports(number: int) -> list[int]:
    """Return TCP ports that are free on every address of this node; others may take one meanwhile."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for probe in sockets:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in sockets]


PORTS = 7
"""Free TCP ports that each node reserves for a run: one for torch, three as the head, three as a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a run.

    Attributes:
        address: At which the other nodes reach it.
        slots: Processes that it can run in parallel: its GPUs, or its vCPUs where it has none.
        ports: PORTS TCP ports that were free a moment ago.
    """

    address: str
    slots: int
    ports: Sequence[int]


def node_environment(rank: int, nodes: Sequence[Node], *, secret: str) -> dict[str, str]:
    """Return the variables of one node.

    `MASTER_ADDR` to `WORLD_SIZE` are those of `torch.distributed`'s `env://`, for one process per node,
    `PET_…` the defaults of torchrun's options, `NODE_RANK` is Lightning's, `TF_CONFIG` TensorFlow's.
    """
    head, own = nodes[0], nodes[rank]
    master_port, *head_ports = head.ports[:4]
    return {
        "DLCLOUD_NODE_RANK": str(rank),
        "DLCLOUD_NODES": str(len(nodes)),
        "DLCLOUD_NODE_ADDRESS": own.address,
        "DLCLOUD_NODE_ADDRESSES": ",".join(node.address for node in nodes),
        "DLCLOUD_NODE_PORTS": ",".join(map(str, own.ports[4:])),
        "DLCLOUD_HEAD_ADDRESS": head.address,
        "DLCLOUD_HEAD_PORTS": ",".join(map(str, head_ports)),
        "DLCLOUD_SECRET": secret,
        "MASTER_ADDR": head.address,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(nodes)),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "PET_NNODES": str(len(nodes)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": head.address,
        "PET_MASTER_PORT": str(master_port),
        "TF_CONFIG": _tensorflow(rank, nodes),
    }


def host_file_of(nodes: Sequence[Node]) -> str:
    """Return the host file of Open MPI: a line per node, `ADDRESS slots=N`."""
    return "".join(f"{node.address} slots={node.slots}\n" for node in nodes)


def _tensorflow(rank: int, nodes: Sequence[Node]) -> str:
    """Return the cluster of `tf.distribute.MultiWorkerMirroredStrategy`."""
    workers = [f"{node.address}:{node.ports[0]}" for node in nodes]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


ALONE_S = 900.0
RETRY_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--address", required=True, help="of this node, for the others")
    parser.add_argument("--secret-file", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path, help="where the command runs")
    arguments = parser.parse_args(argv)
    while (channel := _connect(arguments.head, arguments.secret_file.read_bytes())) is not None:
        with suppress(LostError):
            _serve(channel, arguments)
        channel.close()
    sys.stderr.write(f"no head at {arguments.head} for {ALONE_S:.0f} s\n")
    return 1


def _connect(head: str, secret: bytes) -> Channel | None:
    """Return a connection to the head of the next run; None after ALONE_S without one."""
    host, _, port = head.rpartition(":")
    deadline = time.monotonic() + ALONE_S
    while time.monotonic() < deadline:
        with suppress(OSError, EOFError, AuthenticationError):
            return Channel(connection=Client((host, int(port)), authkey=secret))
        time.sleep(RETRY_S)
    return None


def _serve(channel: Channel, arguments: argparse.Namespace) -> None:
    """Take part in one run; what still runs when the head is gone is ended.

    Raises:
        LostError: The head ended, which it always does.
    """
    channel.send(rank=arguments.rank, address=arguments.address, slots=slots())
    process: NodeProcess | None = None
    try:
        while True:
            message = channel.receive()
            if "prepare" in message:
                channel.send(ports=free_ports(PORTS))
            elif "start" in message and process is None:
                process = start_node(
                    message["start"],
                    arguments.folder,
                    rank=arguments.rank,
                    ended=lambda status, tail: channel.send(ended=status, tail=tail),
                )
            elif "stop" in message and process is not None:
                process.stop()
    finally:
        if process is not None:
            process.stop()


if __name__ == "__main__":
    sys.exit(main())
