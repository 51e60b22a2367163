"""The remote shell of `mpirun`: python -m benchmarks.distributed.mpi_agent node2 COMMAND LINE.

It hands the line to the program `mpirun` of this folder, which has the node of that rank run it.
"""

import json
import os
import sys
from multiprocessing.connection import Client

from .mpirun import AGENT_KEY, AGENT_SOCKET


def main() -> int:
    host, *line = sys.argv[1:]
    secret = os.environ[AGENT_KEY].encode()
    with Client(os.environ[AGENT_SOCKET], "AF_UNIX", authkey=secret) as connection:
        connection.send_bytes(json.dumps([int(host.removeprefix("node")), " ".join(line)]).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
