"""The processes that an agent starts: the workers of an instance, and the lighthouse of the coordinator."""

import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from ..event_names import EventName
from ..records import Records
from ..settings import Settings
from .children import Child
from .options import Options

ROOT = Path(__file__).resolve().parents[(__package__ or "trainer.instance").count(".") + 1]
PACKAGE = (__package__ or "trainer.instance").rpartition(".")[0]

MOST_NODES = 1024
RESTARTS = 1_000_000
"""Torchrun counts a change of membership that ends in a failed collective as a restart: no limit to them."""

RENDEZVOUS = {
    # The store is a process of its own, so that no worker's end ends it.
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


def make_workers(options: Options, records: Records) -> list[Child]:
    """Make a worker per GPU, or one worker, or the torchrun that starts them; none is started yet."""
    if options.engine == "torchrun":
        if not options.workers:
            return []
        environment = ENVIRONMENT | settings_of(options, 0).to_environment()
        return [_make_child(options, records, options.worker, torchrun_command(options), environment)]
    workers = [settings_of(options, number) for number in range(options.workers)]
    return [
        _make_child(options, records, worker.worker, options.command, worker.to_environment())
        for worker in workers
    ]


def make_lighthouse(options: Options, records: Records) -> Child:
    """Make the lighthouse, or the store of torchrun's rendezvous; it is not started yet."""
    command = lighthouse_command(options) if options.engine == "elastic" else store_command(options)
    child = _make_child(options, records, "lighthouse", command, {})
    child.started, child.ended = EventName.LIGHTHOUSE_STARTED, EventName.LIGHTHOUSE_ENDED
    return child


def _make_child(
    options: Options,
    records: Records,
    name: str,
    command: "list[str] | tuple[str, ...]",
    environment: Mapping[str, str],
) -> Child:
    return Child(
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
    """Return the command that runs the script of an instance under torchrun."""
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
