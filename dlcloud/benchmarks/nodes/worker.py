"""The node of a rank above 0: runs what the head sends, once for each connection, until it is ended.

    python -m benchmarks.nodes.worker --head ADDRESS:PORT --rank 2 --address ADDRESS
        --secret-file FILE --folder FOLDER

The launcher ends it with the run; left alone, it ends itself ALONE_S after the head was last there.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

from .channel import Channel, LostError
from .node import PORTS, NodeProcess, free_ports, slots, start_node

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
