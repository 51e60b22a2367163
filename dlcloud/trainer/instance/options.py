"""Command lines: of an agent, and of the lighthouse that the coordinator's agent starts."""

import argparse
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..drain import LEAVE_S
from ..settings import (
    CHECKPOINT_S,
    HEARTBEAT_MS,
    JOIN_MS,
    LEDGER_PORT,
    LIGHTHOUSE_PORT,
    Control,
    ledger_address,
)
from .notices import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of an agent; the parser explains each."""

    run: str
    worker: str
    coordinator: str
    port: int
    folder: Path
    host: str
    workers: int
    lighthouse: bool
    minimum: int
    join_ms: int
    heartbeat_ms: int
    step: int
    checkpoint_s: float
    hash_every: int
    margin_s: float
    last_s: float
    drain_on_rebalance: bool
    restarts: int
    end_alone_s: float | None
    successor: Path | None
    metadata: str
    engine: str
    command: tuple[str, ...]

    @property
    def ledger_address(self) -> str:
        return ledger_address(f"{self.coordinator}:{self.port}")


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the arguments of an agent; a wrong one exits with status 2, as argparse does."""
    parser = _agent_parser(environment.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT)
    values = vars(parser.parse_args(argv))
    command = values.pop("command")
    command = command[1:] if command[:1] == ["--"] else command
    if not command and values["workers"] != 0:
        parser.error("the command of a worker is missing: ... -- python3 script.py")
    coordinator = values["coordinator"]
    try:
        host = values.pop("host") or (coordinator if values["lighthouse"] else address_towards(coordinator))
    except OSError as error:
        parser.error(f"--coordinator {coordinator} cannot be reached: {error}")
    workers = values.pop("workers")
    return Options(
        **{**values, "metadata": values["metadata"].rstrip("/")},
        host=host,
        workers=count_gpus() or 1 if workers is None else workers,
        command=tuple(command),
    )


def parse_lighthouse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.lighthouse",
        description="Serve the lighthouse and the ledger of a run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--run", required=True, help="name of the run that it serves")
    add("--ledger", type=Path, required=True, metavar="FILE", help="where the ledger is kept")
    add("--host", default="", help="address to listen on; empty: all")
    add("--port", type=natural, default=LIGHTHOUSE_PORT, help="of the lighthouse")
    add("--records", type=Path, metavar="FILE", help="where the steps of all workers are recorded")
    add("--ledger-port", type=natural, default=LEDGER_PORT, help="of the ledger")
    _add_quorum(parser)
    return parser.parse_args(argv)


def promote(options: Options, control: Control) -> Options:
    """Return the options of an agent whose instance replaces a lost coordinator."""
    host, _, port = (control.coordinator or "").rpartition(":")
    return replace(
        options,
        coordinator=host,
        host=host,
        port=int(port),
        lighthouse=True,
        minimum=1,  # the control file holds the minimum of a step: it may change
        step=control.step,
    )


def count_gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def address_towards(host: str) -> str:
    """Return the local address from which packets to a host leave; nothing is sent.

    Raises:
        OSError: The host has no address, or there is no route to it.
    """
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _agent_parser(metadata: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.agent",
        description="Run the workers of this instance and let them leave in time.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_place(parser)
    _add_work(parser)
    _add_leaving(parser, metadata)
    group = parser.add_argument_group("lighthouse, on the coordinator")
    group.add_argument("--lighthouse", action="store_true", help="this instance is the coordinator")
    _add_quorum(group)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command of a worker, after --")
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("names and addresses").add_argument
    add("--run", required=True, help="name of the run; workers of another run are refused")
    add("--worker", required=True, metavar="NAME", help="name of this instance in the records")
    add("--coordinator", required=True, metavar="HOST", help="address of the instance with the lighthouse")
    add("--port", type=positive, default=LIGHTHOUSE_PORT, help="of the lighthouse; the ledger has the next")
    add("--host", metavar="ADDRESS", help="this machine's address for its peers; None: detected")
    add("--folder", type=Path, required=True, metavar="DIR",
        help="records, control file, checkpoints, ledger")  # fmt: skip


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("work").add_argument
    add("--workers", type=natural, metavar="N", help="None: one per GPU, or one; 0: only the lighthouse")
    add("--engine", choices=("elastic", "torchrun"), default="elastic", help="torchrun: for other scripts")
    add("--checkpoint-seconds", dest="checkpoint_s", type=seconds, default=CHECKPOINT_S, metavar="S",
        help="between two checkpoints")  # fmt: skip
    add("--hash-every", type=natural, default=0, metavar="N",
        help="steps between digests of the state; 0: none")  # fmt: skip
    add("--restarts", type=natural, default=5, metavar="N", help="of a worker that fails, in a row")


def _add_leaving(parser: argparse.ArgumentParser, metadata: str) -> None:
    add = parser.add_argument_group("leaving").add_argument
    add("--margin", dest="margin_s", type=seconds, default=LEAVE_S, metavar="S",
        help="leave so long before an interruption; train until then")  # fmt: skip
    add("--last-seconds", dest="last_s", type=seconds, default=5.0, metavar="S",
        help="kill a worker that still runs so long before an interruption")  # fmt: skip
    add("--drain-on-rebalance", action="store_true", help="leave at a rebalance recommendation, too")
    add("--end-alone-after", dest="end_alone_s", type=seconds, metavar="S",
        help="power off after so long without coordinator and controller; None: never")  # fmt: skip
    add("--successor", type=Path, metavar="FILE",
        help="run when the coordinator is lost, if it is there then; needs --end-alone-after")  # fmt: skip
    add("--metadata", default=metadata, metavar="URL", help="of the metadata service")


def _add_quorum(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    add = parser.add_argument
    add("--minimum", type=positive, default=1, metavar="N", help="instances that every step needs")
    add("--join-ms", type=positive, default=JOIN_MS, metavar="MS",
        help="how long a step waits for a worker that is late")  # fmt: skip
    add("--heartbeat-ms", type=positive, default=HEARTBEAT_MS, metavar="MS",
        help="a connected worker without a heartbeat for this long hangs")  # fmt: skip
    add("--step", type=natural, default=0, metavar="N",
        help="steps that are committed, where this replaces a lost coordinator")  # fmt: skip


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
