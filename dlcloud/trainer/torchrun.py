"""Run a script that does not call `train` under torchrun, with the settings that make torchrun survive.

Every change of membership restarts all workers, each from its checkpoint: seconds, where `train` takes a
fraction of one. The script has to save checkpoints itself, at intervals and on SIGTERM, and to load the
newest when it starts; `examples/torchrun_digits.py` shows how, with `checkpoint.py`.
"""

import sys
from collections.abc import Sequence

from .agent_options import Options
from .drain import DRAINED
from .lifetime import end_with_parent

MOST_NODES = 1024
RESTARTS = 1_000_000
"""Torchrun counts each change of membership that ends in a failed sum as one: there is no limit to them."""

RENDEZVOUS = {
    # The store is a process of its own: whoever ends, it stays.
    "is_host": "0",
    "join_timeout": "3600",
    # How long a complete rendezvous waits for one more.
    "last_call_timeout": "1",
    # A dead node is forgotten after three of these.
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "3",
    "read_timeout": "60",
}

ENVIRONMENT = {
    # With a shared store the workers' own store dies with one of them, and two runs may go on apart.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def command(options: Options) -> list[str]:
    """Return what the agent of an instance starts."""
    configuration = ",".join(f"{name}={value}" for name, value in RENDEZVOUS.items())
    return [
        sys.executable,
        "-m",
        f"{__package__ or 'trainer'}.torchrun",
        f"--nnodes={options.minimum}:{MOST_NODES}",
        f"--nproc-per-node={max(options.workers, 1)}",
        f"--max-restarts={RESTARTS}",
        "--monitor-interval=0.2",
        "--rdzv-backend=c10d",
        f"--rdzv-id={options.run}",
        f"--rdzv-endpoint={options.coordinator}:{options.port}",
        f"--rdzv-conf={configuration}",
        f"--local-addr={options.host}",
        *script(options.command),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun; the signal to leave, and a failed worker, end it with a status instead of a traceback."""
    # Only here: the agent, which asks this module what to start, needs no PyTorch.
    from torch.distributed import run  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    end_with_parent()
    try:
        run.main(list(sys.argv[1:] if argv is None else argv))
    except SignalException:
        return DRAINED
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def script(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the script of a command as torchrun wants it: without the interpreter."""
    return words[1:] if words and words[0].rpartition("/")[2].startswith("python") else words


def store_command(options: Options) -> list[str]:
    """Return what the coordinator starts."""
    package = __package__ or "trainer"
    return [
        sys.executable, "-m", f"{package}.rendezvous", "--host", options.host, "--port", str(options.port),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
