"""The processes of an agent: its workers, or torchrun, and the lighthouse of the coordinator.

`make_workers` and `make_lighthouse` say which they are; a `SupervisedProcess` starts one, starts it again
after a failure, asks it to leave, and ends it in any case: no process outlives its agent.
"""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..drain import DRAINED
from ..records import EventName, Records
from ..settings import Settings
from .options import Options

ROOT = Path(__file__).resolve().parents[(__package__ or "trainer.instance").count(".") + 1]
PACKAGE = (__package__ or "trainer.instance").rpartition(".")[0]

MOST_NODES = 1024
RESTARTS = 1_000_000
"""Torchrun counts a change of membership that ends in a failed collective as a restart: no limit to them."""

RENDEZVOUS = {
    # The store is its own process, so that no worker's end ends it.
    "is_host": "0",
    "join_timeout": "3600",
    # How long a complete rendezvous waits for one more node.
    "last_call_timeout": "1",
    # A node is dead after three missed intervals.
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "3",
    "read_timeout": "60",
}

ENVIRONMENT = {
    # With a shared store the workers' own store ends with one of them, and the run may split in two.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}

_SIOCGIFADDR = 0x8915


def make_workers(options: Options, records: Records) -> "list[SupervisedProcess]":
    """Make a worker per GPU, or one worker, or the torchrun that starts them; none is started yet."""
    if options.engine == "torchrun":
        if not options.workers:
            return []
        environment = ENVIRONMENT | settings_of(options, 0).to_environment()
        return [_make_process(options, records, options.worker, torchrun_command(options), environment)]
    workers = [settings_of(options, number) for number in range(options.workers)]
    return [
        _make_process(options, records, worker.worker, options.command, worker.to_environment())
        for worker in workers
    ]


def make_lighthouse(options: Options, records: Records) -> "SupervisedProcess":
    """Make the lighthouse, or the store of torchrun's rendezvous; it is not started yet."""
    command = lighthouse_command(options) if options.engine == "elastic" else store_command(options)
    process = _make_process(options, records, "lighthouse", command, {})
    process.started, process.ended = EventName.LIGHTHOUSE_STARTED, EventName.LIGHTHOUSE_ENDED
    return process


def _make_process(
    options: Options,
    records: Records,
    name: str,
    command: "list[str] | tuple[str, ...]",
    environment: Mapping[str, str],
) -> "SupervisedProcess":
    return SupervisedProcess(
        name=name,
        command=command,
        environment={**_common_environment(options), **environment},
        records=records,
        restarts=options.restarts,
    )


def lighthouse_command(options: Options) -> list[str]:
    command = [sys.executable, "-m", f"{PACKAGE}.lighthouse", "--run", options.run, "--host", options.host]
    command += ["--port", str(options.port), "--ledger-port", str(options.port + 1)]
    command += ["--ledger", str(options.folder / "ledger.json"), "--minimum", str(options.minimum)]
    command += ["--records", str(options.folder / "records.jsonl")]
    command += ["--join-ms", str(options.join_ms), "--heartbeat-ms", str(options.heartbeat_ms)]
    return [*command, "--step", str(options.step)]


def torchrun_command(options: Options) -> list[str]:
    configuration = ",".join(f"{name}={value}" for name, value in RENDEZVOUS.items())
    words = options.command
    is_interpreter = bool(words) and words[0].rpartition("/")[2].startswith("python")
    return [
        *[sys.executable, "-m", f"{PACKAGE}.torchrun"],
        f"--nnodes={options.minimum}:{MOST_NODES}",
        f"--nproc-per-node={max(options.workers, 1)}",
        f"--max-restarts={RESTARTS}",
        "--monitor-interval=0.2",
        "--rdzv-backend=c10d",
        f"--rdzv-id={options.run}",
        f"--rdzv-endpoint={options.coordinator}:{options.port}",
        f"--rdzv-conf={configuration}",
        f"--local-addr={options.host}",
        *(words[1:] if is_interpreter else words),  # torchrun adds the interpreter itself
    ]


def store_command(options: Options) -> list[str]:
    """Return the command of the coordinator's store, at which torchrun's agents meet."""
    module = f"{PACKAGE}.torchrun"
    return [sys.executable, "-m", module, "store", "--host", options.host, "--port", str(options.port)]


def settings_of(options: Options, number: int) -> Settings:
    """Return the settings of a worker of this instance; `number` counts from 0."""
    folder = options.folder.absolute()
    return Settings(
        run=options.run,
        worker=options.worker if options.workers == 1 else f"{options.worker}.{number}",
        instance=options.worker,
        mates=options.workers,
        host=options.host,
        lighthouse=f"{options.coordinator}:{options.port}",
        ledger=options.ledger_address,
        records=folder / "records.jsonl",
        # All workers of an instance have the same state: one of them keeps it.
        checkpoints=folder / "checkpoints" if number == 0 else None,
        checkpoint_s=options.checkpoint_s,
        durable=options.lighthouse,
        control=folder / "control.json",
        hash_every=options.hash_every,
        gpu=number,
    )


def _common_environment(options: Options) -> dict[str, str]:
    environment = add_package(os.environ, str(ROOT), str(Path(sys.executable).parent))
    if interface := interface_of(options.host):
        # A host's name may resolve to an address that peers do not reach.
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    return environment


def add_package(environment: Mapping[str, str], root: str, interpreter_folder: str) -> dict[str, str]:
    """Return an environment in which a script finds this package, and `python3` is the agent's own."""
    path = os.pathsep.join(part for part in (root, environment.get("PYTHONPATH", "")) if part)
    programs = os.pathsep.join(part for part in (interpreter_folder, environment.get("PATH", "")) if part)
    return {**environment, "PYTHONPATH": path, "PATH": programs}


def interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None where that is unknown."""
    if sys.platform != "linux":
        return None
    if address.startswith("127."):
        return "lo"
    # Only here: the module does not exist on every system.
    import fcntl  # noqa: PLC0415

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


STEADY_S = 60.0
"""A process that ran so long has its count of failures reset."""

BACKOFF_S = 1.0

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, kw_only=True)
class SupervisedProcess:
    """A supervised process.

    Args:
        started, ended: The events that record it.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    records: Records
    restarts: int
    started: EventName = EventName.WORKER_STARTED
    ended: EventName = EventName.WORKER_ENDED
    is_leaving: bool = field(default=False, init=False)
    status: int | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _start_at: float = field(default=0.0, init=False)
    _started_at: float = field(default=0.0, init=False)

    @property
    def has_ended(self) -> bool:
        """True if it will not be started again; `status` is its last exit status."""
        return self.status is not None

    def poll(self, now: float) -> None:
        """Start it if it is due, or handle its exit.

        Args:
            now: Seconds of a monotonic clock.
        """
        if self.has_ended:
            return
        if self._process is None:
            if self.is_leaving:
                self.status = DRAINED
            elif now >= self._start_at:
                self._start(now)
            return
        status = self._process.poll()
        if status is not None:
            self._process = None
            self._handle_exit(status, now)

    def ask_to_leave(self) -> None:
        """Send SIGTERM, once."""
        if not self.is_leaving and self._process is not None:
            self._process.terminate()
        self.is_leaving = True

    def kill(self) -> None:
        """Send SIGKILL; the process is not started again."""
        self.is_leaving = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()

    def _start(self, now: float) -> None:
        try:
            self._process = subprocess.Popen(list(self.command), env=dict(self.environment))
        except OSError as error:
            self.status = 1
            self.records.event(self.ended, f"cannot be started: {error}", process=self.name)
            return
        self._started_at = now
        self.records.event(
            self.started,
            "again" if self._failures else "first time",
            process=self.name,
            pid=self._process.pid,
        )

    def _handle_exit(self, status: int, now: float) -> None:
        event = EventName.KILLED if status == -signal.SIGKILL else self.ended
        self.records.event(event, _describe_exit(status), process=self.name, status=status)
        if now - self._started_at >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self.is_leaving and status == -signal.SIGTERM:
            # It was asked to leave before it could listen.
            status = DRAINED
        if status in {0, DRAINED} or self.is_leaving or self._failures > self.restarts:
            self.status = status if status >= 0 else 128 - status
            return
        # A first failure may be chance: restart immediately, later ones after a growing pause.
        self._start_at = now + (BACKOFF_S * 2 ** (self._failures - 2) if self._failures > 1 else 0.0)


def _describe_exit(status: int) -> str:
    if status >= 0:
        return {0: "done", DRAINED: "drained"}.get(status, f"failed with status {status}")
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent ends; on other systems nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def watch_termination() -> threading.Event:
    """Return an event that is set by SIGTERM, by SIGINT and by the end of the parent process."""
    end_with_parent()
    terminated = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: terminated.set())
    return terminated
