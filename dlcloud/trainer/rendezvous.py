"""The store that torchrun's agents meet at: a process of its own, so that no worker's end takes it along."""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from .arguments import positive
from .lifetime import end_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python3 -m trainer.rendezvous", description=__doc__)
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", type=positive, required=True)
    arguments = parser.parse_args(argv)
    end_with_parent()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    # After the arguments: a wrong one should not wait for PyTorch.
    from torch.distributed import TCPStore  # noqa: PLC0415

    store = TCPStore(arguments.host, arguments.port, is_master=True, wait_for_workers=False)
    ended.wait()
    del store
    return 0


if __name__ == "__main__":
    sys.exit(main())
