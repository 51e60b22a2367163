"""The lighthouse of a run: tells workers who takes part in each step; with the ledger that fences the run.

Runs on one instance, the coordinator, which must not be a spot instance. Both ports are open to whoever
reaches them: they belong inside a security group. Workers wait while it is away, and go on when it is back.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from . import ports
from .arguments import natural, positive
from .errors import StrangerError
from .ledger import Ledger, LedgerServer
from .lifetime import end_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    arguments = _parse(argv)
    end_with_parent()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        ledger = Ledger(arguments.ledger, arguments.run, step=arguments.step)
        server = LedgerServer(ledger, arguments.host, arguments.ledger_port)
    except (OSError, ValueError, StrangerError) as error:
        sys.stderr.write(f"lighthouse: {error}\n")
        return 1
    # After the arguments: a wrong one should not wait for PyTorch.
    from torchft.coordination import LighthouseServer  # noqa: PLC0415

    lighthouse = LighthouseServer(
        bind=f"{arguments.host or '[::]'}:{arguments.port}",
        min_replicas=arguments.minimum,
        join_timeout_ms=arguments.join_ms,
        heartbeat_timeout_ms=arguments.heartbeat_ms,
    )
    ended.wait()
    lighthouse.shutdown()
    server.shutdown()
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m trainer.lighthouse", description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="name of the run that it serves")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="where the ledger is kept")
    parser.add_argument("--host", default="", help="address to listen on (default: all)")
    parser.add_argument("--port", type=natural, default=ports.LIGHTHOUSE, help="default: %(default)s")
    parser.add_argument("--ledger-port", type=natural, default=ports.LEDGER, help="default: %(default)s")
    parser.add_argument(
        "--minimum", type=positive, default=1, metavar="N", help="workers below which nothing goes on"
    )
    parser.add_argument(
        "--join-ms", type=positive, default=200, metavar="MS",
        help="how long workers wait at a step for one that is alive but late (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--heartbeat-ms", type=positive, default=300, metavar="MS",
        help="a worker that was not heard for so long is gone (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--step", type=natural, default=0, metavar="N",
        help="steps known to be committed, where this one replaces a lost coordinator",
    )  # fmt: skip
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
