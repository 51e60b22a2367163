"""The command line of an agent."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import ports
from .arguments import natural, positive, seconds
from .control import Control
from .network import address_towards
from .notices import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an agent is told; `parse` explains each."""

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
    metadata: str
    engine: str
    command: tuple[str, ...]

    @property
    def ledger_address(self) -> str:
        """Return `HOST:PORT` of the ledger, next to the lighthouse."""
        return ports.ledger_beside(f"{self.coordinator}:{self.port}")


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> Options:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = _parser(environment.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT)
    given = vars(parser.parse_args(argv))
    command = given.pop("command")
    command = command[1:] if command[:1] == ["--"] else command
    if not command and given["workers"] != 0:
        parser.error("what a worker is to run is missing: ... -- python3 script.py")
    try:
        host = given.pop("host") or _own_address(given["coordinator"], lighthouse=given["lighthouse"])
    except OSError as error:
        parser.error(f"--coordinator {given['coordinator']} cannot be found: {error}")
    count = given.pop("workers")
    return Options(
        **{**given, "metadata": given["metadata"].rstrip("/")},
        host=host,
        workers=gpus() or 1 if count is None else count,
        command=tuple(command),
    )


def promoted(options: Options, wanted: Control) -> Options:
    """Return the options of an agent that takes over from a coordinator that is lost."""
    host, _, port = (wanted.coordinator or "").rpartition(":")
    return replace(
        options,
        coordinator=host,
        host=host,
        port=int(port),
        lighthouse=True,
        minimum=1,  # the control file says how many a step needs; it may change
        step=wanted.step,
    )


def gpus() -> int:
    """Count this machine's NVIDIA GPUs."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _own_address(coordinator: str, *, lighthouse: bool) -> str:
    return coordinator if lighthouse else address_towards(coordinator)


def _parser(metadata: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.agent",
        description="Run the workers of this instance and let them leave in time.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_place(parser)
    _add_work(parser)
    _add_leaving(parser, metadata)
    _add_lighthouse(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what a worker runs, after --")
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("who and where").add_argument
    add("--run", required=True, help="name of the run; workers of another are refused")
    add("--worker", required=True, metavar="NAME", help="name of this instance in the records")
    add("--coordinator", required=True, metavar="HOST", help="address of the instance with the lighthouse")
    add("--port", type=positive, default=ports.LIGHTHOUSE, help="of the lighthouse; the ledger has the next")
    add("--host", metavar="ADDRESS", help="this machine's address for its peers; None: found out")
    add(
        "--folder", type=Path, required=True, metavar="DIR", help="records, control file, checkpoints, ledger"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("work").add_argument
    add("--workers", type=natural, metavar="N", help="None: one per GPU, or one; 0: only the lighthouse")
    add("--engine", choices=("elastic", "torchrun"), default="elastic", help="torchrun: for other scripts")
    add(
        "--checkpoint-seconds",
        dest="checkpoint_s",
        type=seconds,
        default=60.0,
        metavar="S",
        help="between two",
    )
    add(
        "--hash-every",
        type=natural,
        default=0,
        metavar="N",
        help="steps between digests of the state; 0: none",
    )
    add("--restarts", type=natural, default=5, metavar="N", help="of a worker that fails, in a row")


def _add_leaving(parser: argparse.ArgumentParser, metadata: str) -> None:
    add = parser.add_argument_group("leaving").add_argument
    add("--margin", dest="margin_s", type=seconds, default=60.0, metavar="S",
        help="leave when an interruption is so near; until then train on")  # fmt: skip
    add("--last-seconds", dest="last_s", type=seconds, default=5.0, metavar="S",
        help="end a worker that is still there when an interruption is so near")  # fmt: skip
    add("--drain-on-rebalance", action="store_true", help="leave at a rebalance recommendation, too")
    add("--metadata", default=metadata, metavar="URL", help="of the metadata service")


def _add_lighthouse(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("lighthouse, on the coordinator").add_argument
    add("--lighthouse", action="store_true", help="this instance is the coordinator")
    add("--minimum", type=positive, default=1, metavar="N", help="workers below which nothing goes on")
    add("--join-ms", type=positive, default=200, metavar="MS", help="how long a step waits for a late worker")
    add(
        "--heartbeat-ms",
        type=positive,
        default=300,
        metavar="MS",
        help="unheard for so long, a worker is gone",
    )
    add(
        "--step", type=natural, default=0, metavar="N", help="steps committed, where this replaces a lost one"
    )
